#!/usr/bin/env python
import math
from dataclasses import dataclass
import torch
from torch import Tensor, nn

TRUTH = {
    "id": "blind5-a07-pointset",
    "row": None,
    "title": "pre-activations are multiplied by sqrt(width) instead of divided: every tanh sits at +-1",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["saturated-activations"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass(frozen=True)
class HP:
    width: int = 96
    depth: int = 4
    n_points: int = 32
    batch: int = 64
    iters: int = 350
    lr: float = 1e-3
    classes: int = 4


def sample_shapes(n: int, hp: HP):
    label = torch.randint(0, hp.classes, (n,))
    t = torch.rand(n, hp.n_points) * 2 * math.pi
    u = torch.rand(n, hp.n_points) * 2 - 1
    circle = torch.stack([t.cos(), t.sin()], -1)
    line = torch.stack([u, 0.3 * u], -1)
    square = torch.stack([u, torch.sign(torch.randn_like(u))], -1)
    disc = circle * torch.rand(n, hp.n_points, 1).sqrt()
    pts = torch.stack([circle, line, square, disc], 1)[torch.arange(n), label]
    ang = torch.rand(n) * 0.8
    rot = torch.stack([torch.stack([ang.cos(), -ang.sin()], -1), torch.stack([ang.sin(), ang.cos()], -1)], -2)
    pts = pts @ rot + 0.08 * torch.randn_like(pts)
    return pts, label


class ScaledDense(nn.Module):
    def __init__(self, i: int, o: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i))
        self.bias = nn.Parameter(torch.zeros(o))
        self.scale = math.sqrt(i)
        self.act = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        z = (x @ self.weight.t()) * self.scale + self.bias
        return self.act(z)


class SetNet(nn.Module):
    def __init__(self, hp: HP):
        super().__init__()
        dims = [2] + [hp.width] * hp.depth
        self.phi = nn.Sequential(*[ScaledDense(a, b) for a, b in zip(dims[:-1], dims[1:])])
        self.rho = nn.Sequential(ScaledDense(hp.width, hp.width), nn.Linear(hp.width, hp.classes))

    def forward(self, pts: Tensor) -> Tensor:
        return self.rho(self.phi(pts).mean(1))


def run(hp: HP) -> None:
    torch.manual_seed(17)
    net = SetNet(hp)
    opt = torch.optim.Adam(net.parameters(), lr=hp.lr)
    loss_fn = nn.CrossEntropyLoss()
    val = sample_shapes(512, hp)
    ema = None
    for it in range(1, hp.iters + 1):
        pts, lab = sample_shapes(hp.batch, hp)
        loss = loss_fn(net(pts), lab)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema = loss.item() if ema is None else 0.95 * ema + 0.05 * loss.item()
        if it % 50 == 0:
            net.eval()
            with torch.no_grad():
                acc = (net(val[0]).argmax(-1) == val[1]).float().mean().item()
            net.train()
            print(f"{it:4d}  loss(ema) {ema:.4f}  val acc {acc:.3f}")


if __name__ == "__main__":
    run(HP())
