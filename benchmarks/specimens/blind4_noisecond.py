import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-noisecond",
    "title": "The optimizer is built on a first model; the trainer then rebuilds the network and copies the warm-start weights into the new object, so the optimizer owns dead tensors and nothing learns.",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-stale-parameters", "optimizer-missing-parameters"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class DiffusionConfig:
    width: int = 128
    depth: int = 3
    timesteps: int = 64
    batch: int = 256
    steps: int = 300
    lr: float = 1e-3
    ema: float = 0.99


class Denoiser(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.temb = nn.Embedding(cfg.timesteps, cfg.width)
        self.inp = nn.Linear(2, cfg.width)
        self.hidden = nn.ModuleList([nn.Linear(cfg.width, cfg.width) for _ in range(cfg.depth)])
        self.out = nn.Linear(cfg.width, 2)

    def forward(self, x, t):
        h = self.inp(x) + self.temb(t)
        for layer in self.hidden:
            h = h + F.silu(layer(h))
        return self.out(h)


def two_moons(n, gen):
    th = torch.rand(n, generator=gen) * torch.pi
    up = torch.rand(n, generator=gen) < 0.5
    x = torch.where(up, torch.cos(th), 1 - torch.cos(th)) - 0.5
    y = torch.where(up, torch.sin(th), 0.5 - torch.sin(th)) - 0.25
    return torch.stack([x, y], 1) * 1.3 + 0.05 * torch.randn(n, 2, generator=gen)


class DiffusionTrainer:
    def __init__(self, cfg, init_from=None):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(2)
        beta = torch.linspace(1e-3, 0.12, cfg.timesteps)
        self.abar = torch.cumprod(1 - beta, 0)
        self.model = Denoiser(cfg)
        self.configure_optimizer()
        if init_from is not None:
            self.load_weights(init_from)
        self.ema = copy.deepcopy(self.model).requires_grad_(False)

    def configure_optimizer(self):
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=self.cfg.lr)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, self.cfg.steps)

    def load_weights(self, state):
        net = Denoiser(self.cfg)
        net.load_state_dict(state)
        self.model = net

    def loss(self, x0):
        t = torch.randint(0, self.cfg.timesteps, (len(x0),), generator=self.gen)
        eps = torch.randn(x0.shape, generator=self.gen)
        a = self.abar[t][:, None]
        return F.mse_loss(self.model(a.sqrt() * x0 + (1 - a).sqrt() * eps, t), eps)

    @torch.no_grad()
    def update_ema(self):
        for e, p in zip(self.ema.parameters(), self.model.parameters()):
            e.lerp_(p, 1 - self.cfg.ema)

    def fit(self):
        for step in range(self.cfg.steps):
            loss = self.loss(two_moons(self.cfg.batch, self.gen))
            self.model.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            self.update_ema()
            if step % 30 == 0:
                print(f"{step:4d} loss {loss.item():.4f} lr {self.sched.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(17)
    cfg = DiffusionConfig()
    seed_net = Denoiser(cfg)
    nn.init.normal_(seed_net.temb.weight, std=0.02)
    DiffusionTrainer(cfg, init_from=seed_net.state_dict()).fit()
