import json
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind5-c04-neumf",
    "row": None,
    "title": "SGD(params, lr, weight_decay, momentum) passed by position: momentum is 1e-5 and dampening 0.9 instead of the configured values",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-hyperparameters-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

CONFIG = json.loads("""
{
  "data":  {"users": 300, "items": 200, "rank": 6, "interactions": 24000},
  "model": {"dim": 16, "hidden": [64, 32], "dropout": 0.1},
  "optim": {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-5},
  "train": {"epochs": 6, "batch_size": 256, "seed": 21}
}
""", object_hook=lambda d: SimpleNamespace(**d))


class Ratings(Dataset):
    def __init__(self, d, n, seed):
        g = torch.Generator().manual_seed(7)
        u = torch.randn(d.users, d.rank, generator=g)
        v = torch.randn(d.items, d.rank, generator=g)
        bu, bv = torch.randn(d.users, generator=g), torch.randn(d.items, generator=g)
        g = torch.Generator().manual_seed(seed)
        self.user = torch.randint(0, d.users, (n,), generator=g)
        self.item = torch.randint(0, d.items, (n,), generator=g)
        raw = (u[self.user] * v[self.item]).sum(1) / d.rank ** 0.5 + bu[self.user] + bv[self.item]
        self.rating = (raw + 0.2 * torch.randn(n, generator=g)) / 1.7

    def __len__(self):
        return len(self.user)

    def __getitem__(self, i):
        return self.user[i], self.item[i], self.rating[i]

    def __getitems__(self, idx):
        idx = torch.as_tensor(idx)
        return [(u, i, r) for u, i, r in zip(self.user[idx], self.item[idx], self.rating[idx])]


class NeuMF(nn.Module):
    def __init__(self, d, m):
        super().__init__()
        self.user_gmf, self.item_gmf = nn.Embedding(d.users, m.dim), nn.Embedding(d.items, m.dim)
        self.user_mlp, self.item_mlp = nn.Embedding(d.users, m.dim), nn.Embedding(d.items, m.dim)
        sizes = [2 * m.dim] + m.hidden
        layers = []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Linear(a, b), nn.ReLU(), nn.Dropout(m.dropout)]
        self.mlp = nn.Sequential(*layers)
        self.score = nn.Linear(sizes[-1] + m.dim, 1)
        for e in (self.user_gmf, self.item_gmf, self.user_mlp, self.item_mlp):
            nn.init.normal_(e.weight, std=0.5)

    def forward(self, u, i):
        gmf = self.user_gmf(u) * self.item_gmf(i)
        mlp = self.mlp(torch.cat([self.user_mlp(u), self.item_mlp(i)], dim=-1))
        return self.score(torch.cat([gmf, mlp], dim=-1)).squeeze(-1)


def rmse(model, loader):
    model.eval()
    se = n = 0
    with torch.inference_mode():
        for u, i, r in loader:
            se += ((model(u, i) - r) ** 2).sum().item()
            n += len(r)
    model.train()
    return (se / n) ** 0.5


def main(cfg):
    torch.manual_seed(cfg.train.seed)
    train = DataLoader(Ratings(cfg.data, cfg.data.interactions, 1), cfg.train.batch_size, shuffle=True)
    valid = DataLoader(Ratings(cfg.data, 3000, 2), 1000)
    model = NeuMF(cfg.data, cfg.model)
    o = cfg.optim
    optimizer = torch.optim.SGD(model.parameters(), o.lr, o.weight_decay, o.momentum)
    loss_fn = nn.MSELoss()
    print("optim:", vars(o))
    for epoch in range(cfg.train.epochs):
        running = 0.0
        for u, i, r in train:
            loss = loss_fn(model(u, i), r)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
        print(f"[{epoch}] train mse {running / len(train):.4f}   valid rmse {rmse(model, valid):.4f}")


main(CONFIG)
