"""DeepFM predicting basket value from eight categorical fields."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-deepfm-spend",
    "row": 7,
    "title": "gradient clipping covers the deep part only, the embedding's large gradients go unclipped into SGD and blow up",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["grad-clip-wrong", "grad-clip-not-applied"],
    "bricks": ["embed"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    fields: int = 8
    values: int = 20
    dim: int = 16
    batch: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    grad_clip: float = 1.0
    steps: int = 400


class DeepFM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c.fields * c.values, c.dim)
        nn.init.normal_(self.embed.weight, std=0.3)
        self.register_buffer("offset", torch.arange(c.fields) * c.values)
        self.deep = nn.Sequential(
            nn.Linear(c.fields * c.dim, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, ids):
        e = self.embed(ids + self.offset)
        fm = 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(-1)
        return fm + self.deep(e.flatten(1)).squeeze(1)


class Baskets:
    def __init__(self, c, seed):
        self.c = c
        w = torch.Generator().manual_seed(21)
        self.v = torch.randn(c.fields, c.values, 4, generator=w) * 0.5
        self.g = torch.Generator().manual_seed(seed)

    def batch(self, n):
        ids = torch.randint(self.c.values, (n, self.c.fields), generator=self.g)
        e = self.v[torch.arange(self.c.fields), ids]
        s = 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(-1)
        return ids, 12 + 2 * s + 0.3 * torch.randn(n, generator=self.g)


class Trainer:
    def __init__(self, model, c):
        self.model, self.c = model, c
        self.opt = torch.optim.SGD(model.parameters(), lr=c.lr, momentum=c.momentum)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, c.steps)

    def step(self, ids, y):
        self.opt.zero_grad(set_to_none=True)
        loss = F.mse_loss(self.model(ids), y)
        loss.backward()
        gn = nn.utils.clip_grad_norm_(self.model.deep.parameters(), self.c.grad_clip)
        self.opt.step()
        self.sched.step()
        return loss.item(), gn.item()


def main():
    torch.manual_seed(1)
    c = Config()
    trainer, data = Trainer(DeepFM(c), c), Baskets(c, 1)
    for step in range(c.steps):
        loss, gn = trainer.step(*data.batch(c.batch))
        if step < 5 or step % 40 == 0 or step == c.steps - 1:
            print(f"step {step:4d} loss {loss:.4f} grad norm {gn:.2f}")


main()
