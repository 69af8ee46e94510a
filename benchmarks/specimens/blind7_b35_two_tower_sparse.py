TRUTH = {"id": "blind7-b35-two-tower-sparse", "title": "healthy two-tower retrieval with sparse embeddings, in-batch softmax and a learned temperature", "family": "other", "needs": "cpu",
         "trap": "sparse gradients, two optimizers, rows of the tables that are never touched in a step, a scalar temperature that drifts, no weight decay"}
import math
import torch
from torch import nn
import torch.nn.functional as F

N_USER, N_ITEM, DIM = 600, 300, 24


class Tower(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.table = nn.Embedding(n, DIM, sparse=True)
        nn.init.normal_(self.table.weight, std=0.1)
        self.mlp = nn.Sequential(nn.Linear(DIM, 48), nn.ReLU(), nn.Linear(48, DIM))

    def forward(self, ids):
        e = self.table(ids)
        return F.normalize(e + self.mlp(e), dim=-1)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = Tower(N_USER), Tower(N_ITEM)
        self.log_scale = nn.Parameter(torch.tensor(math.log(5.0)))

    def forward(self, u, i):
        return self.log_scale.exp().clamp(max=50) * self.user(u) @ self.item(i).T


def interactions(gen):
    cu = torch.arange(N_USER) % 12
    ci = torch.arange(N_ITEM) % 12
    by = [torch.nonzero(ci == c).squeeze(1) for c in range(12)]

    def draw(n):
        u = torch.randint(0, N_USER, (n,), generator=gen)
        r = torch.randint(0, N_ITEM // 12, (n,), generator=gen)
        i = torch.stack([by[cu[a]][b] for a, b in zip(u.tolist(), r.tolist())])
        return u, i
    return draw, cu, ci


def main():
    torch.manual_seed(70)
    draw, cu, ci = interactions(torch.Generator().manual_seed(71))
    m = TwoTower()
    sparse = [m.user.table.weight, m.item.table.weight]
    dense = [p for p in m.parameters() if all(p is not q for q in sparse)]
    o1 = torch.optim.SparseAdam(sparse, lr=1e-2)
    o2 = torch.optim.Adam(dense, lr=2e-3)
    for step in range(500):
        u, i = draw(64)
        logits = m(u, i)
        same = (i.view(-1, 1) == i.view(1, -1)) | (cu[u].view(-1, 1) == ci[i].view(1, -1))
        same.fill_diagonal_(False)
        logits = logits.masked_fill(same, -1e4)
        y = torch.arange(64)
        loss = 0.5 * (F.cross_entropy(logits, y) + F.cross_entropy(logits.T, y))
        o1.zero_grad(); o2.zero_grad()
        loss.backward()
        o1.step(); o2.step()
        if step % 50 == 49:
            with torch.no_grad():
                top = m(torch.arange(N_USER), torch.arange(N_ITEM)).argmax(1)
                hit = (ci[top] == cu).float().mean().item()
            print(f"step {step + 1} loss {loss.item():.3f} scale {m.log_scale.exp().item():.1f} hit@1 {hit:.3f}")


main()
