"""Two-phase training of a temporal convolution forecaster (clean windows, then noisy windows)."""
import math
from dataclasses import dataclass, field
import torch
from torch import nn

TRUTH = {
    "id": "blind6-d09-load-forecast",
    "row": None,
    "title": "phase 2 warms up with the global step instead of the phase step: lr is about 8 times the peak for 24 steps, the loss spikes",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["loss-spike-optimizer", "learning-rate-too-high"],
    "bricks": [],
    "first_step": 180,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Phase:
    name: str
    steps: int
    noise: float
    peak: float
    warmup: int = 24


@dataclass
class Plan:
    history: int = 64
    horizon: int = 8
    batch: int = 32
    channels: int = 24
    phases: list = field(default_factory=lambda: [Phase("clean", 180, 0.0, 2e-3), Phase("noisy", 180, 0.05, 2e-3)])


def windows(plan, noise):
    n, t = plan.batch, plan.history + plan.horizon
    phase = torch.rand(n, 1) * 2 * math.pi
    k = torch.arange(t).float()
    day = torch.sin(2 * math.pi * k / 24 + phase)
    week = 0.5 * torch.sin(2 * math.pi * k / 56 + 2 * phase)
    amp = 0.6 + 0.8 * torch.rand(n, 1)
    s = amp * (day + week)
    x = s[:, :plan.history] + noise * torch.randn(n, plan.history)
    return x.unsqueeze(1), s[:, plan.history:]


class CausalBlock(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(c, c, 3, dilation=dilation)
        self.mix = nn.Conv1d(c, c, 1)

    def forward(self, x):
        h = torch.relu(self.conv(nn.functional.pad(x, (self.pad, 0))))
        return x + self.mix(h)


class TCN(nn.Module):
    def __init__(self, plan):
        super().__init__()
        c = plan.channels
        self.inp = nn.Conv1d(1, c, 1)
        self.blocks = nn.Sequential(*[CausalBlock(c, 2 ** i) for i in range(4)])
        self.out = nn.Linear(c, plan.horizon)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x))[:, :, -1])


def learning_rate(phase, step, begin):
    if step - begin < phase.warmup:
        return phase.peak * (step + 1) / phase.warmup
    done = (step - begin - phase.warmup) / (phase.steps - phase.warmup)
    return phase.peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


def train(plan):
    torch.manual_seed(8)
    net = TCN(plan)
    opt = torch.optim.Adam(net.parameters(), lr=plan.phases[0].peak)
    step = 0
    for phase in plan.phases:
        begin = step
        while step < begin + phase.steps:
            for g in opt.param_groups:
                g["lr"] = learning_rate(phase, step, begin)
            x, y = windows(plan, phase.noise)
            loss = nn.functional.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 10 == 0:
                print(f"{phase.name} step {step} mse {loss.item():.5f}")
        net.eval()
        with torch.no_grad():
            err = sum(nn.functional.l1_loss(net(x), y).item() for x, y in (windows(plan, 0.05) for _ in range(8))) / 8
        net.train()
        print(f"== end of {phase.name}: mae {err:.4f}")


train(Plan())
