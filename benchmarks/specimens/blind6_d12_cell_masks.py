"""Segment blobs with a small U-Net; the run is cut in two by the queue's time limit."""
import math
import os
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind6-d12-cell-masks",
    "row": None,
    "title": "after the restart only the weights are restored: Adam moments and the lr schedule begin anew",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["resume-state-lost"],
    "bricks": [],
    "first_step": 190,
    "needs": "cpu",
    "crashes": False,
}


def fields(n, size=24):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    mask = torch.zeros(n, size, size, dtype=torch.bool)
    for _ in range(3):
        c = torch.rand(n, 2, 1, 1) * size
        r = 2 + 3 * torch.rand(n, 1, 1)
        mask |= (yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2 < r ** 2
    m = mask.float().unsqueeze(1)
    return (m - 0.25 + 0.8 * torch.randn_like(m)) / 0.9, m


def block(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU())


class UNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.d1, self.d2, self.mid = block(1, c), block(c, 2 * c), block(2 * c, 2 * c)
        self.u2, self.u1 = block(4 * c, c), block(2 * c, c)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = self.mid(F.max_pool2d(b, 2))
        y = self.u2(torch.cat([F.interpolate(m, scale_factor=2), b], 1))
        y = self.u1(torch.cat([F.interpolate(y, scale_factor=2), a], 1))
        return self.out(y)


class Session:
    def __init__(self, total=240, peak=4e-2, path="cell_masks.pt"):
        self.total, self.path = total, path
        self.net = UNet()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=peak)
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1, s / total)))))
        self.step = 0
        if os.path.exists(path):
            self.restore()

    def save(self):
        torch.save({"net": self.net.state_dict(), "opt": self.opt.state_dict(),
                    "sched": self.sched.state_dict(), "step": self.step}, self.path)

    def restore(self):
        ck = torch.load(self.path)
        self.net.load_state_dict(ck["net"])
        self.step = ck["step"]
        print(f"restored {self.path} at step {self.step}")

    def run(self, until):
        self.net.train()
        while self.step < min(until, self.total):
            x, m = fields(16)
            loss = F.binary_cross_entropy_with_logits(self.net(x), m)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            self.step += 1
            if self.step % 10 == 2:
                print(f"{self.step:4d} bce {loss.item():.4f} val {self.check()}")
        self.save()

    @torch.no_grad()
    def check(self):
        self.net.eval()
        z = self.net(VAL[0])
        p = z > 0
        t = VAL[1] > 0
        self.net.train()
        bce = F.binary_cross_entropy_with_logits(z, VAL[1])
        return f"{bce.item():.4f} iou {((p & t).sum() / (p | t).sum()).item():.3f}"


torch.manual_seed(30)
VAL = fields(64)
if os.path.exists("cell_masks.pt"):
    os.remove("cell_masks.pt")
Session().run(until=190)
Session().run(until=240)
os.remove("cell_masks.pt")
