"""Implicit-feedback recommender: BPR with sparse tables and long-tailed items."""
import numpy as np
import torch
import torch.nn as nn

TRUTH = {"id": "blind5-a35-bpr-sparse", "title": "BPR matrix factorisation, sparse gradients, SparseAdam and Adam side by side",
           "family": "other", "needs": "cpu",
           "trap": "most embedding rows get no gradient in a step, sparse gradients, two optimizers, item padding row stays zero"}

USERS, ITEMS, K = 400, 300, 16


class Implicit:
    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        u, v = rng.normal(size=(USERS, 6)), rng.normal(size=(ITEMS, 6))
        pop = 1.0 / np.arange(1, ITEMS + 1) ** 0.5
        score = u @ v.T * 1.2 + np.log(pop)[None] * 0.8
        p = np.exp(score - score.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        self.train, self.test, self.seen = [], [], np.zeros((USERS, ITEMS), bool)
        for i in range(USERS):
            picks = rng.choice(ITEMS, 40, replace=False, p=p[i])
            self.train += [(i, j) for j in picks[:36]]
            self.test += [(i, j) for j in picks[36:]]
            self.seen[i, picks[:36]] = True
        self.train = np.array(self.train)
        self.rng = rng

    def epoch(self, bs):
        perm = self.rng.permutation(len(self.train))
        for s in range(0, len(perm) - bs + 1, bs):
            b = self.train[perm[s:s + bs]]
            neg = self.rng.integers(0, ITEMS, bs)
            clash = self.seen[b[:, 0], neg]
            while clash.any():
                neg[clash] = self.rng.integers(0, ITEMS, clash.sum())
                clash = self.seen[b[:, 0], neg]
            yield torch.as_tensor(b[:, 0]), torch.as_tensor(b[:, 1]), torch.as_tensor(neg)


class BPR(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, K, sparse=True)
        self.item = nn.Embedding(ITEMS + 1, K, padding_idx=ITEMS, sparse=True)
        self.bias = nn.Embedding(ITEMS + 1, 1, padding_idx=ITEMS, sparse=True)
        self.mix = nn.Linear(K, K, bias=False)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)
        nn.init.eye_(self.mix.weight)

    def forward(self, u, i):
        return (self.mix(self.user(u)) * self.item(i)).sum(-1) + self.bias(i).squeeze(-1)


@torch.no_grad()
def auc(model, data, n=50):
    model.eval()
    u = torch.tensor([a for a, _ in data.test])
    pos = model(u, torch.tensor([b for _, b in data.test]))
    neg = torch.randint(0, ITEMS, (len(u), n))
    s = model(u[:, None].expand(-1, n), neg)
    model.train()
    return (pos[:, None] > s).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(1)
    data, model = Implicit(), BPR()
    tables = [model.user.weight, model.item.weight, model.bias.weight]
    opts = [torch.optim.SparseAdam(tables, lr=0.01), torch.optim.Adam(model.mix.parameters(), lr=1e-3)]
    for ep in range(8):
        tot, n = 0.0, 0
        for u, i, j in data.epoch(256):
            loss = -nn.functional.logsigmoid(model(u, i) - model(u, j)).mean()
            for o in opts:
                o.zero_grad()
            loss.backward()
            for o in opts:
                o.step()
            tot, n = tot + loss.item(), n + 1
        print(f"epoch {ep} bpr {tot / n:.4f} auc {auc(model, data):.3f}")
