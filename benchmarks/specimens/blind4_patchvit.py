import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-patchvit",
    "title": "AdamW runs with a learning rate of 0.2 (copied from an SGD recipe), far too high for a transformer: the loss rises above its start, oscillates and barely falls.",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["learning-rate-too-high"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    classes: int = 6
    dim: int = 48
    depth: int = 3
    heads: int = 4
    image: int = 24
    patch: int = 6
    lr: float = 0.2
    weight_decay: float = 1e-4
    warmup: int = 10
    epochs: int = 5
    batch: int = 32


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.proj(o)
        return x + self.mlp(self.n2(x))


class ViT(nn.Module):
    def __init__(self, c):
        super().__init__()
        n = (c.image // c.patch) ** 2
        self.embed = nn.Conv2d(1, c.dim, c.patch, stride=c.patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, c.dim))
        self.pos = nn.Parameter(0.02 * torch.randn(1, n + 1, c.dim))
        self.layers = nn.Sequential(*[Layer(c.dim, c.heads) for _ in range(c.depth)])
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, c.classes)

    def forward(self, x):
        t = self.embed(x).flatten(2).transpose(1, 2)
        t = torch.cat([self.cls.expand(len(x), -1, -1), t], 1) + self.pos
        return self.head(self.norm(self.layers(t))[:, 0])


def gratings(n, c, gen):
    y = torch.randint(0, c.classes, (n,), generator=gen)
    ang = y.float() * torch.pi / c.classes
    g = torch.arange(c.image).float()
    ph = torch.rand(n, generator=gen) * 6.28
    arg = torch.cos(ang)[:, None, None] * g[None, :, None] + torch.sin(ang)[:, None, None] * g[None, None, :]
    x = torch.sin(0.9 * arg + ph[:, None, None])
    return (x + 0.5 * torch.randn(x.shape, generator=gen))[:, None], y


class Trainer:
    def __init__(self, c):
        self.c = c
        g = torch.Generator().manual_seed(100)
        self.x, self.y = gratings(960, c, g)
        self.vx, self.vy = gratings(256, c, g)
        self.model = ViT(c)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=c.lr, weight_decay=c.weight_decay)
        self.sched = torch.optim.lr_scheduler.LinearLR(self.opt, 0.1, 1.0, c.warmup)

    def train_epoch(self):
        tot, n = 0.0, 0
        for idx in torch.randperm(len(self.x)).split(self.c.batch):
            loss = F.cross_entropy(self.model(self.x[idx]), self.y[idx])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            tot, n = tot + loss.item(), n + 1
        return tot / n

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        out = self.model(self.vx)
        self.model.train()
        return F.cross_entropy(out, self.vy).item(), (out.argmax(1) == self.vy).float().mean().item()

    def fit(self):
        with tempfile.TemporaryDirectory() as d:
            for e in range(self.c.epochs):
                tr = self.train_epoch()
                vl, acc = self.validate()
                print(f"epoch {e} train {tr:.3f} val {vl:.3f} acc {acc:.3f}")
                torch.save({"model": self.model.state_dict(), "opt": self.opt.state_dict()}, Path(d) / "last.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    Trainer(Config()).fit()
