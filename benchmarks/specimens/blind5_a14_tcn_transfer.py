"""Pre-train a temporal conv net on plentiful source sensors, then adapt it to a target sensor."""
import math
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-a14-tcn-transfer",
    "row": None,
    "title": "the adaptation run takes over the step counter of the pre-training checkpoint: it starts at step 240 of 300, at the tail of its schedule",
    "family": "cnn",
    "kind": "process",
    "contracts": [],
    "root_causes": ["resume-step-leaked"],
    "bricks": [],
    "first_step": 240,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Stage:
    name: str
    max_steps: int
    peak_lr: float
    warmup: int = 20
    batch: int = 48
    init_from: str = ""


class Causal(nn.Module):
    def __init__(self, c, dil):
        super().__init__()
        self.pad = 2 * dil
        self.conv = nn.Conv1d(c, c, 3, dilation=dil)
        self.mix = nn.Conv1d(c, c, 1)

    def forward(self, x):
        return x + self.mix(F.gelu(self.conv(F.pad(x, (self.pad, 0)))))


class TCN(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.stem = nn.Conv1d(1, c, 1)
        self.blocks = nn.Sequential(*[Causal(c, d) for d in (1, 2, 4, 8)])
        self.head = nn.Conv1d(c, 1, 1)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


def source_signal(n, T=65):
    t = torch.arange(T).float()
    f = torch.rand(n, 1) * 0.3 + 0.1
    return torch.sin(f * t + torch.rand(n, 1) * 6.28) + 0.03 * torch.randn(n, T)


def target_signal(n, T=65):
    t = torch.arange(T).float()
    f = torch.rand(n, 1) * 0.6 + 0.5
    s = 2 * torch.remainder(f * t / 6.28 + torch.rand(n, 1), 1.0) - 1
    return -s.sign() * s.abs().sqrt() + 0.03 * torch.randn(n, T)


class Trainer:
    def __init__(self, stage, signal):
        self.stage, self.signal = stage, signal
        self.model = TCN()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=stage.peak_lr)
        self.step = 0
        if stage.init_from:
            self.load(stage.init_from)

    def load(self, path):
        ck = torch.load(path)
        self.model.load_state_dict(ck["model"])
        self.step = ck["step"]
        print(f"[{self.stage.name}] weights from {path}")

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "opt": self.opt.state_dict(), "step": self.step}, path)

    def lr(self):
        s = self.stage
        if self.step < s.warmup:
            return s.peak_lr * (self.step + 1) / s.warmup
        p = (self.step - s.warmup) / (s.max_steps - s.warmup)
        return s.peak_lr * 0.5 * (1 + math.cos(math.pi * p))

    def loss(self, n):
        s = self.signal(n).unsqueeze(1)
        return F.mse_loss(self.model(s[..., :-1])[..., 8:], s[..., 9:])

    def train(self):
        while self.step < self.stage.max_steps:
            for g in self.opt.param_groups:
                g["lr"] = self.lr()
            loss = self.loss(self.stage.batch)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if self.step % 30 == 0:
                print(f"[{self.stage.name}] step {self.step}/{self.stage.max_steps} loss {loss.item():.4f}")
            self.step += 1
        self.model.eval()
        with torch.no_grad():
            print(f"[{self.stage.name}] final mse {self.loss(256).item():.4f}")


def main():
    torch.manual_seed(31)
    os.makedirs("tcn_runs", exist_ok=True)
    pre = Trainer(Stage("pretrain", 240, 3e-3), source_signal)
    pre.train()
    pre.save("tcn_runs/pretrain.pt")
    ada = Trainer(Stage("adapt", 300, 3e-3, init_from="tcn_runs/pretrain.pt"), target_signal)
    ada.train()
    ada.save("tcn_runs/adapt.pt")


if __name__ == "__main__":
    main()
