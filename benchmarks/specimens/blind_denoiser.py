"""Small diffusion model on a two-dimensional toy distribution."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn

TRUTH = {
    "id": "blind-denoiser",
    "row": None,
    "title": "DiffusionTrainer overrides after_step without calling the parent, which is what steps the OneCycleLR: lr stays at max_lr/25",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["schedule-not-stepped"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class TrainConfig:
    max_lr: float = 4e-3
    steps: int = 500
    batch_size: int = 256
    log_every: int = 50
    seed: int = 11


class Trainer:
    def __init__(self, model, cfg, sampler):
        self.model, self.cfg, self.sampler = model, cfg, sampler
        self.optimizer = torch.optim.Adam(model.parameters(), lr=cfg.max_lr)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, cfg.max_lr, total_steps=cfg.steps)
        self.step = 0
        self.history = []

    def compute_loss(self, batch):
        raise NotImplementedError

    def after_step(self, loss):
        self.scheduler.step()
        self.history.append(loss)

    def fit(self):
        self.model.train()
        while self.step < self.cfg.steps:
            batch = self.sampler(self.cfg.batch_size)
            loss = self.compute_loss(batch)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.step += 1
            self.after_step(loss.item())


class Denoiser(nn.Module):
    def __init__(self, width=128, n_freq=8):
        super().__init__()
        self.register_buffer("freqs", 2.0 ** torch.arange(n_freq) * math.pi / 2)
        self.net = nn.Sequential(
            nn.Linear(2 + 2 * n_freq, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 2),
        )

    def forward(self, x, t):
        ang = t[:, None] * self.freqs
        return self.net(torch.cat([x, ang.sin(), ang.cos()], dim=-1))


class DiffusionTrainer(Trainer):
    def __init__(self, model, cfg, sampler, n_levels=50):
        super().__init__(model, cfg, sampler)
        betas = torch.linspace(1e-3, 0.15, n_levels)
        self.abar = torch.cumprod(1 - betas, 0)
        self.n_levels = n_levels
        self.ema = None

    def compute_loss(self, x0):
        k = torch.randint(0, self.n_levels, (len(x0),))
        a = self.abar[k][:, None]
        eps = torch.randn_like(x0)
        xt = a.sqrt() * x0 + (1 - a).sqrt() * eps
        return (self.model(xt, k.float() / self.n_levels) - eps).pow(2).mean()

    def after_step(self, loss):
        self.history.append(loss)
        self.ema = loss if self.ema is None else 0.95 * self.ema + 0.05 * loss
        if self.step % self.cfg.log_every == 0:
            lr = self.scheduler.get_last_lr()[0]
            print(f"step {self.step:4d}  loss {loss:.4f}  smoothed {self.ema:.4f}  lr {lr:.2e}")


def ring_sampler(n):
    theta = torch.randint(0, 6, (n,)) * (2 * math.pi / 6)
    centre = torch.stack([theta.cos(), theta.sin()], dim=1) * 1.6
    return centre + 0.05 * torch.randn(n, 2)


def main():
    cfg = TrainConfig()
    torch.manual_seed(cfg.seed)
    model = Denoiser()
    trainer = DiffusionTrainer(model, cfg, ring_sampler)
    trainer.fit()
    model.eval()
    with torch.no_grad():
        val = sum(trainer.compute_loss(ring_sampler(1024)).item() for _ in range(10)) / 10
    print(f"validation loss {val:.4f}")


if __name__ == "__main__":
    main()
