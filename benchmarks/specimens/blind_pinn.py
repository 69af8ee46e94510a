"""Physics-informed network for a Poisson problem on [-1, 1]^2."""

import math

import torch
import torch.nn as nn

TRUTH = {
    "id": "blind-pinn",
    "title": "PINN: Poisson equation, second derivatives through autograd, boundary penalty",
    "family": "mlp",
    "needs": "cpu",
    "trap": "no labels, nested autograd.grad with create_graph, large residual loss at the start, last bias hardly seen by the residual term, inputs require grad",
}


class PINN(nn.Module):
    def __init__(self, width=40, depth=3):
        super().__init__()
        sizes = [2] + [width] * depth
        self.hidden = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:])])
        self.out = nn.Linear(width, 1)
        for l in self.hidden:
            nn.init.xavier_normal_(l.weight)

    def forward(self, x):
        for l in self.hidden:
            x = torch.tanh(l(x))
        return self.out(x)


def exact(x):
    return torch.sin(math.pi * x[:, :1]) * torch.cos(math.pi / 2 * x[:, 1:])


def source(x):
    return -(math.pi**2 * 1.25) * exact(x)


def laplacian(u, x):
    g = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    uxx = torch.autograd.grad(g[:, 0].sum(), x, create_graph=True)[0][:, :1]
    uyy = torch.autograd.grad(g[:, 1].sum(), x, create_graph=True)[0][:, 1:]
    return uxx + uyy


def boundary(n, g):
    t = torch.rand(n, generator=g) * 2 - 1
    side = torch.randint(4, (n,), generator=g)
    e = torch.where(side % 2 == 0, 1.0, -1.0)
    return torch.where((side < 2)[:, None], torch.stack([t, e], 1), torch.stack([e, t], 1))


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(4)
    net = PINN()
    steps = 600
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps, eta_min=1e-5)
    ax = torch.linspace(-1, 1, 21)
    grid = torch.cartesian_prod(ax, ax)
    for it in range(steps):
        x = (torch.rand(200, 2, generator=g) * 2 - 1).requires_grad_(True)
        res = (laplacian(net(x), x) - source(x)).pow(2).mean()
        xb = boundary(100, g)
        bc = (net(xb) - exact(xb)).pow(2).mean()
        loss = 0.05 * res + 10.0 * bc
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if it % 60 == 0 or it == steps - 1:
            with torch.no_grad():
                err = ((net(grid) - exact(grid)).norm() / exact(grid).norm()).item()
            print(f"it {it} residual {res.item():.4f} bc {bc.item():.5f} rel err {err:.4f}")


if __name__ == "__main__":
    main()
