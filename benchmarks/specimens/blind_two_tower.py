import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-two-tower",
    "row": None,
    "title": "the item tower is encoded in training through the no_grad helper meant for building the retrieval index, so it gets no gradient",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["no-gradient-path"],
    "bricks": ["item_tower"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class TwoTower(nn.Module):
    def __init__(self, n_items, user_dim, dim=16):
        super().__init__()
        self.user_tower = nn.Sequential(nn.Linear(user_dim, 48), nn.ReLU(), nn.Linear(48, dim))
        self.item_tower = nn.Sequential(nn.Embedding(n_items, 24), nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, dim))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def embed_users(self, feats):
        return F.normalize(self.user_tower(feats), dim=-1)

    @torch.no_grad()
    def embed_items(self, ids):
        return F.normalize(self.item_tower(ids), dim=-1)

    def forward(self, feats, ids):
        u = self.embed_users(feats)
        v = self.embed_items(ids)
        return self.scale.exp() * u @ v.t()


class Clicks:
    def __init__(self, n_items=300, user_dim=12):
        g = torch.Generator().manual_seed(9)
        self.item_vec = torch.randn(n_items, user_dim, generator=g)
        self.g, self.n_items, self.user_dim = g, n_items, user_dim

    def batch(self, n):
        u = torch.randn(n, self.user_dim, generator=self.g)
        p = (1.5 * u @ self.item_vec.t()).softmax(-1)
        return u, torch.multinomial(p, 1, generator=self.g).squeeze(1)


def in_batch_loss(scores, ids):
    dup = ids[:, None] == ids[None, :]
    dup.fill_diagonal_(False)
    scores = scores.masked_fill(dup, -1e4)
    return F.cross_entropy(scores, torch.arange(len(ids)))


def recall_at(model, data, k=10):
    u, i = data.batch(500)
    model.eval()
    with torch.no_grad():
        index = model.embed_items(torch.arange(data.n_items))
        top = (model.embed_users(u) @ index.t()).topk(k, -1).indices
    model.train()
    return (top == i[:, None]).any(1).float().mean().item()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=500)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--lr", type=float, default=3e-3)
    a = ap.parse_args()
    torch.manual_seed(0)
    data = Clicks()
    model = TwoTower(data.n_items, data.user_dim)
    opt = torch.optim.Adam(model.parameters(), lr=a.lr)
    for s in range(a.steps):
        u, i = data.batch(a.batch)
        loss = in_batch_loss(model(u, i), i)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 100 == 0 or s == a.steps - 1:
            print(f"{s} loss {loss.item():.4f} recall@10 {recall_at(model, data):.3f}")
