import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-sparse-recsys",
    "title": "matrix factorisation with sparse embeddings (SparseAdam) and dense biases (Adam), BPR loss",
    "family": "other",
    "needs": "cpu",
    "trap": "two optimizers; most embedding rows get no gradient in any one step; sparse gradients",
}


class MF(nn.Module):
    def __init__(self, users, items, d=16):
        super().__init__()
        self.u = nn.Embedding(users, d, sparse=True)
        self.i = nn.Embedding(items, d, sparse=True)
        self.pop = nn.Parameter(torch.zeros(items))
        nn.init.normal_(self.u.weight, std=0.1)
        nn.init.normal_(self.i.weight, std=0.1)

    def score(self, u, i):
        return (self.u(u) * self.i(i)).sum(-1) + self.pop[i]


def main(users=300, items=200, steps=500, batch=256):
    torch.manual_seed(0)
    tu, ti = torch.randn(users, 5), torch.randn(items, 5)
    pref = (1.2 * tu @ ti.t() + 0.8 * torch.randn(items)).softmax(-1)
    model = MF(users, items)
    sparse = torch.optim.SparseAdam([model.u.weight, model.i.weight], lr=0.02)
    dense = torch.optim.Adam([model.pop], lr=0.01)
    for s in range(steps):
        u = torch.randint(0, users, (batch,))
        pos = torch.multinomial(pref[u], 1).squeeze(1)
        neg = torch.randint(0, items, (batch,))
        loss = -F.logsigmoid(model.score(u, pos) - model.score(u, neg)).mean()
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        if s % 100 == 0 or s == steps - 1:
            with torch.no_grad():
                full = model.u.weight @ model.i.weight.t() + model.pop
                auc = (full.gather(1, pref.topk(10, -1).indices).mean(1) > full.mean(1)).float().mean()
            print(f"{s} bpr {loss.item():.4f} top>mean {auc:.3f}")


if __name__ == "__main__":
    main()
