"""Fit a coordinate network to a 2-D signal."""
import math
import time
import torch
from torch import nn

TRUTH = {
    "id": "blind6-d04-neural-field",
    "row": None,
    "title": "weights and Adam state kept in bfloat16 without an fp32 master copy: small updates are rounded away",
    "family": "mlp",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["bf16-precision-loss"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

SETTINGS = dict(width=96, depth=3, bands=6, steps=400, batch=512, lr=1.5e-4, dtype="bfloat16")


def signal(xy):
    x, y = xy[:, 0], xy[:, 1]
    return (0.5 * torch.sin(3 * math.pi * x) * torch.cos(2 * math.pi * y)
            + 0.3 * torch.exp(-8 * ((x - 0.3) ** 2 + (y + 0.2) ** 2)) + 0.2 * x * y).unsqueeze(1)


class Fourier(nn.Module):
    def __init__(self, bands):
        super().__init__()
        self.register_buffer("freq", math.pi * torch.arange(1, bands + 1).float() / 2)

    def forward(self, xy):
        a = (xy.unsqueeze(-1) * self.freq.float()).flatten(1)
        return torch.cat([a.sin(), a.cos()], dim=1)


class Field(nn.Module):
    def __init__(self, width, depth, bands):
        super().__init__()
        self.enc = Fourier(bands)
        dims = [4 * bands] + [width] * depth
        self.trunk = nn.Sequential(*[m for a, b in zip(dims, dims[1:]) for m in (nn.Linear(a, b), nn.SiLU())])
        self.read = nn.Linear(width, 1)

    def forward(self, xy):
        z = self.enc(xy).to(self.read.weight.dtype)
        return self.read(self.trunk(z)).float()


def psnr(mse):
    return -10 * math.log10(mse)


def main(s):
    torch.manual_seed(7)
    net = Field(s["width"], s["depth"], s["bands"]).to(getattr(torch, s["dtype"]))
    opt = torch.optim.Adam(net.parameters(), lr=s["lr"])
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 48), torch.linspace(-1, 1, 48))
    truth = signal(grid)
    t0 = time.time()
    for step in range(1, s["steps"] + 1):
        xy = torch.rand(s["batch"], 2) * 2 - 1
        loss = (net(xy) - signal(xy)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            with torch.no_grad():
                mse = (net(grid) - truth).square().mean().item()
            print(f"{step:5d} loss {loss.item():.5f} psnr {psnr(mse):.2f} dB  {time.time() - t0:.1f}s")


main(SETTINGS)
