import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-recommender",
    "title": "When the catalogue grows, the item tables are replaced by larger ones after the optimizer was built; the optimizer keeps the old tables and the new ones never move.",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-stale-parameters", "optimizer-missing-parameters"],
    "bricks": ["item_emb", "item_bias"],
    "first_step": 80,
    "needs": "cpu",
    "crashes": False,
}


class World:
    def __init__(self, users, items, seed):
        rng = np.random.default_rng(seed)
        self.u, self.v, self.b = rng.normal(size=(users, 6)), rng.normal(size=(items, 6)), 0.5 * rng.normal(size=items)
        self.rng, self.users = rng, users

    def sample(self, n, lo, hi):
        u, i = self.rng.integers(0, self.users, n), self.rng.integers(lo, hi, n)
        r = 3 + (self.u[u] * self.v[i]).sum(1) / 2.5 + self.b[i] + 0.1 * self.rng.normal(size=n)
        return torch.from_numpy(u), torch.from_numpy(i), torch.tensor(r, dtype=torch.float32)


class TwoTower(nn.Module):
    def __init__(self, users, items, d=16):
        super().__init__()
        self.user_emb, self.item_emb = nn.Embedding(users, d), nn.Embedding(items, d)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for e in (self.user_emb, self.item_emb):
            nn.init.normal_(e.weight, std=0.3)
        for e in (self.user_bias, self.item_bias):
            nn.init.zeros_(e.weight)
        self.mu = nn.Parameter(torch.tensor(3.0))
        self.mlp = nn.Sequential(nn.Linear(2 * d, 32), nn.ReLU(), nn.Linear(32, 1))

    def grow_items(self, items):
        for name, std in (("item_emb", 0.3), ("item_bias", 0.0)):
            old = getattr(self, name)
            new = nn.Embedding(items, old.embedding_dim)
            nn.init.normal_(new.weight, std=std) if std else nn.init.zeros_(new.weight)
            new.weight.data[:old.num_embeddings] = old.weight.data
            setattr(self, name, new)

    def forward(self, u, i):
        a, b = self.user_emb(u), self.item_emb(i)
        z = (a * b).sum(-1) + self.mlp(torch.cat([a, b], -1)).squeeze(-1)
        return self.mu + z + self.user_bias(u).squeeze(-1) + self.item_bias(i).squeeze(-1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--users", type=int, default=150)
    p.add_argument("--catalogue", type=int, nargs="+", default=[80, 240, 240, 240])
    p.add_argument("--steps-per-phase", type=int, default=80)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--batch", type=int, default=512)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    world = World(a.users, max(a.catalogue), 0)
    model = TwoTower(a.users, a.catalogue[0])
    opt = torch.optim.Adam(model.parameters(), lr=a.lr)
    size = a.catalogue[0]
    for phase, items in enumerate(a.catalogue):
        if items > size:
            model.grow_items(items)
            size = items
            print("catalogue now", items)
        for s in range(a.steps_per_phase):
            u, i, r = world.sample(a.batch, 0, size)
            loss = F.mse_loss(model(u, i), r) + 1e-4 * model.user_emb(u).pow(2).sum(-1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if s % 20 == 0:
                print(f"phase {phase} step {s} mse {loss.item():.4f}")
        with torch.no_grad():
            u, i, r = world.sample(4000, 0, size)
            print(f"phase {phase} eval rmse {F.mse_loss(model(u, i), r).sqrt().item():.4f}")


if __name__ == "__main__":
    main()
