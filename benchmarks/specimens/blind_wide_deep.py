"""Wide and deep click model: sparse Adagrad-style tables, dense AdamW, each with its own schedule."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-wide-deep",
    "title": "two optimizers (SparseAdam on embeddings, AdamW on the MLP) with different schedules",
    "family": "other",
    "needs": "cpu",
    "trap": "sparse gradients, two optimizers with different lr and betas on purpose, one stepped by exponential decay and one by OneCycle",
}

FIELDS = [300, 200, 50]


class WideDeep(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(n, dim, sparse=True) for n in FIELDS])
        for t in self.tables:
            nn.init.normal_(t.weight, std=0.3)
        self.deep = nn.Sequential(nn.Linear(3 * dim + 3, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, ids, dense):
        e = [t(ids[:, i]) for i, t in enumerate(self.tables)]
        return self.deep(torch.cat(e + [dense], 1)).squeeze(1)


class Log:
    def __init__(self, seed):
        w = torch.Generator().manual_seed(0)
        self.bias = [torch.randn(n, generator=w) * 1.3 for n in FIELDS]
        self.coef = torch.tensor([1.0, -0.7, 0.5])
        self.g = torch.Generator().manual_seed(seed)

    def batch(self, n=256):
        ids = torch.stack([(torch.rand(n, generator=self.g) ** 1.5 * k).long() for k in FIELDS], 1)
        dense = torch.randn(n, 3, generator=self.g)
        z = sum(b[ids[:, i]] for i, b in enumerate(self.bias)) + dense @ self.coef
        return ids, dense, (torch.rand(n, generator=self.g) < torch.sigmoid(1.5 * z)).float()


def main(steps=450):
    torch.manual_seed(1)
    model, train, test = WideDeep(), Log(1), Log(2)
    sparse = torch.optim.SparseAdam(model.tables.parameters(), lr=1e-2, betas=(0.8, 0.98))
    dense = torch.optim.AdamW(model.deep.parameters(), lr=1e-3, weight_decay=0.01)
    s_sched = torch.optim.lr_scheduler.ExponentialLR(sparse, 0.995)
    d_sched = torch.optim.lr_scheduler.OneCycleLR(dense, 4e-3, total_steps=steps)
    vi, vd, vy = test.batch(4000)
    for step in range(steps):
        ids, d, y = train.batch()
        loss = F.binary_cross_entropy_with_logits(model(ids, d), y)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        s_sched.step()
        d_sched.step()
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                o = model(vi, vd)
            model.train()
            print(
                f"step {step + 1} loss {loss.item():.4f} val {F.binary_cross_entropy_with_logits(o, vy).item():.4f} "
                f"acc {((o > 0) == (vy > 0.5)).float().mean().item():.3f}"
            )


main()
