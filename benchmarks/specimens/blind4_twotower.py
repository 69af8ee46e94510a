import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-twotower",
    "title": "The item tower's encode method is decorated with no_grad for index building and the training loss uses it too, so the item tower never gets a gradient.",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["no-gradient-path"],
    "bricks": ["item_tower", "item_tower.emb", "item_tower.mlp", "item_tower.mlp.0", "item_tower.mlp.2"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Tower(nn.Module):
    def __init__(self, n, dim, feats):
        super().__init__()
        self.emb = nn.Embedding(n, dim)
        self.mlp = nn.Sequential(nn.Linear(dim + feats, 96), nn.ReLU(), nn.Linear(96, dim))

    def forward(self, ids, feats):
        return F.normalize(self.mlp(torch.cat([self.emb(ids), feats], -1)), dim=-1)


class Recommender(nn.Module):
    def __init__(self, users, items, dim=32):
        super().__init__()
        self.user_tower = Tower(users, dim, 6)
        self.item_tower = Tower(items, dim, 6)
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    @torch.no_grad()
    def encode_items(self, ids, feats):
        return self.item_tower(ids, feats)

    def forward(self, u, uf, i, itf):
        q = self.user_tower(u, uf)
        k = self.encode_items(i, itf)
        return self.log_scale.exp() * q @ k.T


class World:
    def __init__(self, users=400, items=300, gen=None):
        self.gen = gen
        self.ul = torch.randn(users, 6, generator=gen)
        self.il = torch.randn(items, 6, generator=gen)
        self.pref = (self.ul @ self.il.T * 1.5).softmax(-1)
        self.uf = self.ul + 0.5 * torch.randn(users, 6, generator=gen)
        self.itf = self.il + 0.5 * torch.randn(items, 6, generator=gen)

    def batch(self, n):
        u = torch.randint(0, len(self.ul), (n,), generator=self.gen)
        i = torch.multinomial(self.pref[u], 1, generator=self.gen).squeeze(1)
        return u, self.uf[u], i, self.itf[i]


@torch.no_grad()
def recall_at_k(model, world, k=20):
    model.eval()
    ids = torch.arange(len(world.il))
    index = model.encode_items(ids, world.itf)
    u = torch.arange(200)
    top = (model.user_tower(u, world.uf[u]) @ index.T).topk(k).indices
    best = world.pref[u].argmax(1)
    model.train()
    return (top == best[:, None]).any(1).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=350)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--lr", type=float, default=2e-3)
    a = ap.parse_args([])
    torch.set_num_threads(1)
    torch.manual_seed(33)
    world = World(gen=torch.Generator().manual_seed(34))
    model = Recommender(400, 300)
    opt = torch.optim.Adam(model.parameters(), lr=a.lr)
    target = torch.arange(a.batch)
    for s in range(a.steps):
        logits = model(*world.batch(a.batch))
        loss = F.cross_entropy(logits, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 35 == 0:
            print(f"step {s} loss {loss.item():.4f} recall@20 {recall_at_k(model, world):.3f}")
    print("final recall", recall_at_k(model, world))


main()
