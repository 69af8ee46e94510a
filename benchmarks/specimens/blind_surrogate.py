"""Surrogate classifier for a simulated stability map."""

from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split

TRUTH = {
    "id": "blind-surrogate",
    "row": None,
    "title": "fourteen sigmoid layers in a row: the gradient shrinks by a factor per layer and the early ones never learn",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["vanishing-gradients"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    n_samples: int = 6000
    width: int = 64
    depth: int = 14
    batch_size: int = 128
    epochs: int = 8
    lr: float = 0.1
    momentum: float = 0.9
    seed: int = 3


def simulate(n, gen):
    x = torch.randn(n, 6, generator=gen)
    energy = x[:, 0] * x[:, 1] + 0.8 * x[:, 2] - 0.6 * x[:, 3].abs()
    y = torch.bucketize(energy, torch.tensor([-1.0, 0.0, 1.0]))
    return x, y


class Surrogate(nn.Module):
    def __init__(self, n_in, n_out, width, depth):
        super().__init__()
        dims = [n_in] + [width] * depth
        body = []
        for a, b in zip(dims[:-1], dims[1:]):
            body += [nn.Linear(a, b), nn.Sigmoid()]
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(width, n_out)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_uniform_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        return self.head(self.body(x))


def accuracy(model, loader):
    model.eval()
    hit = tot = 0
    with torch.no_grad():
        for xb, yb in loader:
            hit += (model(xb).argmax(1) == yb).sum().item()
            tot += len(yb)
    model.train()
    return hit / tot


def main(cfg: Config):
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    x, y = simulate(cfg.n_samples, gen)
    train_set, val_set = random_split(TensorDataset(x, y), [5000, 1000], generator=gen)
    train_dl = DataLoader(train_set, batch_size=cfg.batch_size, shuffle=True, drop_last=True)
    val_dl = DataLoader(val_set, batch_size=500)

    model = Surrogate(6, 4, cfg.width, cfg.depth)
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=cfg.epochs * len(train_dl))
    loss_fn = nn.CrossEntropyLoss()

    for epoch in range(cfg.epochs):
        total = 0.0
        for xb, yb in train_dl:
            loss = loss_fn(model(xb), yb)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(train_dl):.4f}  val acc {accuracy(model, val_dl):.3f}")


if __name__ == "__main__":
    main(Config())
