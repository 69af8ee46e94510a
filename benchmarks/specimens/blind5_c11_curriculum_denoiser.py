import resource

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-c11-curriculum-denoiser",
    "row": None,
    "title": "the curriculum keeps the per-sample scores of a probe forward with their autograd graphs: memory grows every step",
    "family": "cnn",
    "kind": "performance",
    "contracts": [],
    "root_causes": ["memory-leak"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Down(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 3, padding=1)
        self.norm = nn.GroupNorm(4, o)

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


class MiniUNet(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.d1, self.d2, self.mid = Down(1, w), Down(w, 2 * w), Down(2 * w, 2 * w)
        self.u1 = Down(4 * w, w)
        self.u0 = Down(2 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.avg_pool2d(a, 2))
        m = self.mid(F.avg_pool2d(b, 2))
        u = self.u1(torch.cat([F.interpolate(m, scale_factor=2.0), b], 1))
        u = self.u0(torch.cat([F.interpolate(u, scale_factor=2.0), a], 1))
        return x - self.out(u)


class Curriculum:
    """Starts with the easiest noise levels and widens the range as the probe score improves."""

    def __init__(self, levels=(0.1, 0.2, 0.35, 0.5, 0.7)):
        self.levels = levels
        self.stage = 1
        self.scores = {lv: [] for lv in levels}

    def draw(self, n):
        return torch.tensor(np.random.choice(self.levels[:self.stage], n), dtype=torch.float32)

    def record(self, level, per_sample):
        self.scores[level].append(per_sample)

    def update(self):
        hardest = self.levels[self.stage - 1]
        recent = self.scores[hardest][-8:]
        if len(recent) == 8 and self.stage < len(self.levels):
            if torch.stack(recent).mean() < 0.35 * hardest ** 2 + 0.004:
                self.stage += 1


def shapes(n, size=32):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    cx, cy = torch.rand(2, n, 1, 1) - 0.5
    r = 0.25 + 0.4 * torch.rand(n, 1, 1)
    square = (torch.rand(n, 1, 1) < 0.5)
    disk = ((xx - cx) ** 2 + (yy - cy) ** 2 < r ** 2)
    box = torch.maximum((xx - cx).abs(), (yy - cy).abs()) < r
    return (torch.where(square, box, disk).float() * 2 - 1).unsqueeze(1)


def rss_mb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 2 ** 20


def main(steps=160, batch=10):
    torch.manual_seed(4)
    np.random.seed(4)
    net, cur = MiniUNet(), Curriculum()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=steps)
    for step in range(steps):
        clean = shapes(batch)
        sigma = cur.draw(batch).view(-1, 1, 1, 1)
        loss = F.mse_loss(net(clean + sigma * torch.randn_like(clean)), clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()

        level = cur.levels[cur.stage - 1]
        probe = shapes(batch)
        err = F.mse_loss(net(probe + level * torch.randn_like(probe)), probe, reduction="none").mean((1, 2, 3))
        cur.record(level, err)
        cur.update()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:3d} loss {loss.item():.4f} stage {cur.stage} probe {err.mean().item():.4f} rss {rss_mb():.0f} MB")


if __name__ == "__main__":
    main()
