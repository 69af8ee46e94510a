import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind-sparse-recommender", "title": "BPR recommender with sparse embeddings and two optimizers", "family": "other", "needs": "cpu",
           "trap": "sparse gradients, most rows untouched in a step, SparseAdam beside AdamW"}

USERS, ITEMS, D = 800, 1200, 16


class BPR(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, D, sparse=True)
        self.items = nn.Embedding(ITEMS, D, sparse=True)
        nn.init.normal_(self.users.weight, std=0.1)
        nn.init.normal_(self.items.weight, std=0.1)
        self.mix = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D))

    def score(self, u, i):
        e = self.users(u)
        return ((e + self.mix(e)) * self.items(i)).sum(-1)

    def forward(self, u, pos, neg):
        return -F.logsigmoid(self.score(u, pos) - self.score(u, neg)).mean()


def world(seed=0):
    g = torch.Generator().manual_seed(seed)
    ug = torch.randint(0, 8, (USERS,), generator=g)
    ig = torch.randint(0, 8, (ITEMS,), generator=g)
    return g, ug, ig, [torch.nonzero(ig == k).flatten() for k in range(8)]


def triplets(n, g, ug, groups):
    u = torch.randint(0, USERS, (n,), generator=g)
    pos = torch.stack([groups[k][torch.randint(0, len(groups[k]), (1,), generator=g)[0]] for k in ug[u].tolist()])
    neg = torch.randint(0, ITEMS, (n,), generator=g)
    return u, pos, neg


if __name__ == "__main__":
    torch.manual_seed(0)
    g, ug, ig, groups = world()
    u, p, n = triplets(51200, g, ug, groups)
    vu, vp, vn = triplets(2000, g, ug, groups)
    keep = ig[vn] != ug[vu]
    model = BPR()
    sparse = torch.optim.SparseAdam([model.users.weight, model.items.weight], lr=1e-2)
    dense = torch.optim.AdamW(model.mix.parameters(), lr=2e-3)
    batch = 256
    for epoch in range(2):
        order = torch.randperm(len(u))
        for b in range(0, len(u), batch):
            i = order[b:b + batch]
            loss = model(u[i], p[i], n[i])
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()
            if (b // batch) % 50 == 0:
                with torch.no_grad():
                    auc = (model.score(vu, vp) > model.score(vu, vn))[keep].float().mean().item()
                print(f"epoch {epoch} batch {b // batch} loss {loss.item():.4f} auc {auc:.3f}")
    with torch.no_grad():
        print(f"final auc {(model.score(vu, vp) > model.score(vu, vn))[keep].float().mean().item():.3f}")
