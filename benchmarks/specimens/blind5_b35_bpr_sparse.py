"""BPR two-tower recommender, sparse user/item tables and a dense side network."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-b35-bpr-sparse",
    "title": "BPR with sparse embeddings (SparseAdam) and a dense feature tower (Adam)",
    "family": "other",
    "needs": "cpu",
    "trap": "sparse gradients, most rows untouched in a step, two optimizers, loss starts at ln 2",
}

USERS, ITEMS, DIM, TASTES = 1500, 800, 16, 10


class Catalogue:
    def __init__(self):
        self.g = torch.Generator().manual_seed(40)
        self.u = torch.randint(0, TASTES, (USERS,), generator=self.g)
        self.i = torch.randint(0, TASTES, (ITEMS,), generator=self.g)
        self.by = [torch.nonzero(self.i == t).squeeze(1) for t in range(TASTES)]
        self.side = torch.randn(ITEMS, 6, generator=self.g)
        self.side[:, 0] += (self.i % 2).float() * 2

    def triples(self, n):
        u = torch.randint(0, USERS, (n,), generator=self.g)
        r = torch.rand(n, generator=self.g)
        pos = torch.stack([self.by[t][int(q * len(self.by[t]))] for t, q in zip(self.u[u].tolist(), r.tolist())])
        neg = torch.randint(0, ITEMS, (n,), generator=self.g)
        return u, pos, neg


class TwoTower(nn.Module):
    def __init__(self, side):
        super().__init__()
        self.users = nn.Embedding(USERS, DIM, sparse=True)
        self.items = nn.Embedding(ITEMS, DIM, sparse=True)
        nn.init.normal_(self.users.weight, std=0.1)
        nn.init.normal_(self.items.weight, std=0.1)
        self.register_buffer("side", side)
        self.side_net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, DIM))

    def item(self, i):
        return self.items(i) + self.side_net(self.side[i])

    def forward(self, u, pos, neg):
        e = self.users(u)
        return (e * self.item(pos)).sum(-1), (e * self.item(neg)).sum(-1)


def auc(model, cat):
    model.eval()
    with torch.no_grad():
        p, n = model(*cat.triples(2000))
    model.train()
    return (p > n).float().mean().item()


def main():
    torch.manual_seed(40)
    cat = Catalogue()
    model = TwoTower(cat.side)
    sparse = torch.optim.SparseAdam([model.users.weight, model.items.weight], lr=0.02)
    dense = torch.optim.Adam(model.side_net.parameters(), lr=2e-3)
    tot = 0.0
    for step in range(1, 301):
        p, n = model(*cat.triples(384))
        loss = -F.logsigmoid(p - n).mean()
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        tot += loss.item()
        if step % 50 == 0:
            print(f"step {step} loss {tot / 50:.4f} pairwise accuracy {auc(model, cat):.3f}")
            tot = 0.0


main()
