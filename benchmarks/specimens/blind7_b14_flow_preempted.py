TRUTH = {
    "id": "blind7-b14-flow-preempted",
    "row": None,
    "title": "after resume fit() builds optimizer and scheduler anew, so the restored Adam moments and the schedule position are thrown away and the rate jumps back to its peak",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["resume-state-lost"],
    "bricks": [],
    "first_step": 330,
    "needs": "cpu",
    "crashes": False,
}
import copy
import math
import os
from dataclasses import dataclass, field

import torch
import torch.nn as nn


@dataclass
class FlowConfig:
    dim: int = 6
    couplings: int = 6
    hidden: int = 48
    batch: int = 128
    total_steps: int = 400
    lr: float = 1.2e-2
    ema: float = 0.98
    ckpt: str = "flow_ckpt.pt"
    seed: int = 50
    log_every: int = 20


class Coupling(nn.Module):
    def __init__(self, dim, hidden, flip):
        super().__init__()
        self.flip, self.half = flip, dim // 2
        self.net = nn.Sequential(nn.Linear(self.half, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
                                 nn.Linear(hidden, 2 * self.half))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, -1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, -1)
        s = 1.5 * torch.tanh(s)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], -1), s.sum(-1)


class RealNVP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(c.dim, c.hidden, i % 2 == 1) for i in range(c.couplings))

    def log_prob(self, x):
        ld = 0.0
        for l in self.layers:
            x, d = l(x)
            ld = ld + d
        return -0.5 * (x ** 2).sum(-1) - 0.5 * x.size(-1) * math.log(2 * math.pi) + ld


def target_samples(n, dim, gen):
    z = torch.randn(n, dim, generator=gen)
    x = z.clone()
    x[:, 1] = 0.3 * z[:, 1] + z[:, 0] ** 2 - 1
    x[:, 3] = 0.3 * z[:, 3] + torch.sin(2 * z[:, 2])
    x[:, 5] = 0.2 * z[:, 5] + 0.5 * z[:, 4] * z[:, 0]
    return x


class Trainer:
    def __init__(self, cfg, resume=False):
        self.cfg = cfg
        self.model = RealNVP(cfg)
        self.ema = copy.deepcopy(self.model).requires_grad_(False)
        self.step = 0
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.configure_optimizers()
        if resume:
            self.restore()

    def configure_optimizers(self):
        self.opt = torch.optim.Adam(self.model.parameters(), lr=self.cfg.lr, betas=(0.9, 0.99))
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, self.cfg.total_steps, eta_min=1e-5)

    def save(self):
        torch.save({"model": self.model.state_dict(), "ema": self.ema.state_dict(), "opt": self.opt.state_dict(),
                    "sched": self.sched.state_dict(), "step": self.step, "gen": self.gen.get_state()}, self.cfg.ckpt)

    def restore(self):
        s = torch.load(self.cfg.ckpt)
        self.model.load_state_dict(s["model"])
        self.ema.load_state_dict(s["ema"])
        self.opt.load_state_dict(s["opt"])
        self.sched.load_state_dict(s["sched"])
        self.step = s["step"]
        self.gen.set_state(s["gen"])

    @torch.no_grad()
    def update_ema(self):
        for e, p in zip(self.ema.parameters(), self.model.parameters()):
            e.lerp_(p, 1 - self.cfg.ema)

    def fit(self, until):
        self.configure_optimizers()
        while self.step < until:
            x = target_samples(self.cfg.batch, self.cfg.dim, self.gen)
            loss = -self.model.log_prob(x).mean()
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.opt.step()
            self.sched.step()
            self.update_ema()
            self.step += 1
            if self.step % self.cfg.log_every == 0:
                print(f"step {self.step} nll {loss.item():.4f} lr {self.sched.get_last_lr()[0]:.2e}")


def main():
    cfg = FlowConfig()
    torch.manual_seed(cfg.seed)
    first = Trainer(cfg)
    first.fit(until=330)  # job slot ends here
    first.save()
    del first
    second = Trainer(cfg, resume=True)
    print("resumed at", second.step)
    second.fit(until=cfg.total_steps)
    x = target_samples(2000, cfg.dim, torch.Generator().manual_seed(1))
    with torch.no_grad():
        print("test nll", -second.model.log_prob(x).mean().item(), "ema", -second.ema.log_prob(x).mean().item())
    os.remove(cfg.ckpt)


if __name__ == "__main__":
    main()
