import math
from dataclasses import dataclass, replace

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-finetune-head",
    "row": 34,
    "title": "fine-tuning starts from the pretraining checkpoint and takes over its step: only the last 60 of 300 steps run, at the tail of the schedule",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["resume-step-leaked"],
    "bricks": [],
    "first_step": 240,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    classes: int
    total_steps: int
    lr: float
    warmup: int = 15
    batch: int = 64
    seed: int = 0
    init_from: str = ""


def waves(n, classes, seed, shift=0.0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.linspace(0, 1, 64)
    f = 2 + y.float() + shift
    x = torch.sin(6.283 * (f[:, None] * t + torch.rand(n, 1, generator=g)))
    x = x + 0.4 * torch.sin(6.283 * 2 * f[:, None] * t) + 0.6 * torch.randn(n, 64, generator=g)
    return x[:, None], y


class WaveNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv1d(1, 16, 9, padding=4, stride=2),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Conv1d(16, 32, 5, padding=2, stride=2),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Conv1d(32, 48, 5, padding=2, stride=2),
            nn.BatchNorm1d(48),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(96, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


class Trainer:
    def __init__(self, cfg, train, val):
        self.cfg, self.train_set, self.val_set = cfg, train, val
        torch.manual_seed(cfg.seed)
        self.model = WaveNet(cfg.classes)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=0.01)
        self.step = 0
        if cfg.init_from:
            self.load(cfg.init_from)

    def load(self, path):
        ckpt = torch.load(path)
        own = self.model.state_dict()
        weights = {k: v for k, v in ckpt["model"].items() if k in own and own[k].shape == v.shape}
        self.model.load_state_dict(weights, strict=False)
        self.step = ckpt["step"]
        print(f"loaded {len(weights)} tensors from {path}")

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "step": self.step}, path)

    def lr_at(self, step):
        c = self.cfg
        if step < c.warmup:
            return c.lr * (step + 1) / c.warmup
        return c.lr * 0.5 * (1 + math.cos(math.pi * (step - c.warmup) / (c.total_steps - c.warmup)))

    def fit(self):
        x, y = self.train_set
        while self.step < self.cfg.total_steps:
            lr = self.lr_at(self.step)
            for group in self.opt.param_groups:
                group["lr"] = lr
            i = torch.randint(0, len(y), (self.cfg.batch,))
            self.model.train()
            loss = F.cross_entropy(self.model(x[i]), y[i])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            if self.step % 20 == 0:
                print(
                    f"  step {self.step}/{self.cfg.total_steps} lr {lr:.2e} loss {loss.item():.4f} val acc {self.accuracy():.3f}"
                )
        return self

    @torch.no_grad()
    def accuracy(self):
        self.model.eval()
        x, y = self.val_set
        return (self.model(x).argmax(1) == y).float().mean().item()


def main():
    torch.set_num_threads(1)
    base = Config(classes=8, total_steps=240, lr=3e-3)
    print("pretraining")
    Trainer(base, waves(4000, 8, 1), waves(800, 8, 2)).fit().save("base.pt")
    print("fine-tuning")
    tune = replace(base, classes=10, total_steps=300, lr=2e-3, seed=1, init_from="base.pt")
    Trainer(tune, waves(4000, 10, 3, shift=0.5), waves(800, 10, 4, shift=0.5)).fit().save("tuned.pt")


if __name__ == "__main__":
    main()
