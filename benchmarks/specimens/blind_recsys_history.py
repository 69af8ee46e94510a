"""Two-tower click model: pooled watch history against a candidate item."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-recsys-history",
    "row": None,
    "title": "masked mean over the user's history divides by the history length, which is 0 for a cold-start user",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["division-by-zero"],
    "bricks": ["user_tower.pool"],
    "first_step": 102,
    "needs": "cpu",
    "crashes": False,
}

MAX_HIST = 24


class ClickLog(Dataset):
    def __init__(self, n, n_items, seed):
        g = torch.Generator().manual_seed(seed)
        world = torch.Generator().manual_seed(99)
        taste = torch.randn(n_items, 6, generator=world)
        popularity = torch.randint(0, n_items, (n, MAX_HIST), generator=g)
        lengths = torch.poisson(torch.full((n,), 9.0), generator=g).long().clamp(max=MAX_HIST)
        self.mask = torch.arange(MAX_HIST)[None] < lengths[:, None]
        # users watch items close to their own taste
        user = torch.randn(n, 6, generator=g)
        cand = torch.randint(0, n_items, (n, MAX_HIST, 12), generator=g)
        score = (taste[cand] * user[:, None, None]).sum(-1)
        best = score.argmax(-1, keepdim=True)
        self.hist = torch.where(self.mask, cand.gather(-1, best).squeeze(-1), popularity * 0)
        self.item = torch.randint(0, n_items, (n,), generator=g)
        affinity = (taste[self.item] * user).sum(-1)
        self.click = (affinity + 0.5 * torch.randn(n, generator=g) > 0).float()

    def __len__(self):
        return len(self.item)

    def __getitem__(self, i):
        return self.hist[i], self.mask[i], self.item[i], self.click[i]


class HistoryPool(nn.Module):
    def forward(self, emb, mask):
        w = mask.unsqueeze(-1).to(emb.dtype)
        return (emb * w).sum(dim=1) / w.sum(dim=1)


class UserTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.pool = HistoryPool()
        self.mlp = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, emb, mask):
        return self.mlp(self.pool(emb, mask))


class TwoTower(nn.Module):
    def __init__(self, n_items, dim=32):
        super().__init__()
        self.items = nn.Embedding(n_items, dim)
        nn.init.normal_(self.items.weight, std=0.5)
        self.user_tower = UserTower(dim)
        self.item_tower = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, hist, mask, item):
        u = self.user_tower(self.items(hist), mask)
        v = self.item_tower(self.items(item))
        return (u * v).sum(-1) + self.bias


def evaluate(model, loader):
    model.eval()
    hit, total = 0, 0
    with torch.no_grad():
        for hist, mask, item, click in loader:
            p = model(hist, mask, item) > 0
            hit += (p.float() == click).sum().item()
            total += len(click)
    model.train()
    return hit / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    torch.manual_seed(7)
    train = ClickLog(12000, 60, seed=3)
    val = ClickLog(1000, 60, seed=4)
    tl = DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True)
    vl = DataLoader(val, batch_size=250)
    model = TwoTower(60)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    step = 0
    for epoch in range(args.epochs):
        for hist, mask, item, click in tl:
            loss = F.binary_cross_entropy_with_logits(model(hist, mask, item), click)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step:4d} loss {loss.item():.4f}")
            step += 1
        print(f"epoch {epoch} val acc {evaluate(model, vl):.3f}")


if __name__ == "__main__":
    main()
