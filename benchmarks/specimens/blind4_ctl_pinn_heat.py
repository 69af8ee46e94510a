import math
import torch
import torch.nn as nn

TRUTH = {
    "id": "blind4-ctl_pinn_heat",
    "title": "A healthy physics-informed network for the 1-d heat equation.",
    "family": "mlp",
    "needs": "cpu",
    "trap": "Tanh units, no data set (fresh collocation points each step), gradients of the input, a weighted loss with a large first value, cosine learning rate to nearly zero.",
}


class Field(nn.Module):
    def __init__(self, w=40, depth=3):
        super().__init__()
        dims = [2] + [w] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))
        self.out = nn.Linear(w, 1)
        for l in [*self.hidden, self.out]:
            nn.init.xavier_normal_(l.weight)
            nn.init.zeros_(l.bias)

    def forward(self, x, t):
        h = torch.cat([2 * x - 1, 2 * t - 1], 1)
        for l in self.hidden:
            h = torch.tanh(l(h))
        return self.out(h)


def residual(net, x, t, kappa):
    x, t = x.requires_grad_(True), t.requires_grad_(True)
    u = net(x, t)
    ux, ut = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    uxx = torch.autograd.grad(ux.sum(), x, create_graph=True)[0]
    return ut - kappa * uxx


def main():
    cfg = {"kappa": 0.1, "steps": 350, "points": 256, "lr": 5e-3, "w_ic": 20.0, "w_bc": 10.0}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    net = Field()
    opt = torch.optim.Adam(net.parameters(), lr=cfg["lr"])
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg["steps"])
    gx, gt = torch.meshgrid(torch.linspace(0, 1, 41), torch.linspace(0, 1, 21), indexing="ij")
    gx, gt = gx.reshape(-1, 1), gt.reshape(-1, 1)
    exact = torch.exp(-cfg["kappa"] * math.pi ** 2 * gt) * torch.sin(math.pi * gx)
    for step in range(cfg["steps"]):
        r = lambda n: torch.rand(n, 1, generator=g)
        pde = residual(net, r(cfg["points"]), r(cfg["points"]), cfg["kappa"]).pow(2).mean()
        x0 = r(96)
        ic = (net(x0, torch.zeros_like(x0)) - torch.sin(math.pi * x0)).pow(2).mean()
        tb = r(64)
        bc = (net(torch.zeros_like(tb), tb).pow(2) + net(torch.ones_like(tb), tb).pow(2)).mean()
        loss = pde + cfg["w_ic"] * ic + cfg["w_bc"] * bc
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 35 == 0 or step == cfg["steps"] - 1:
            with torch.no_grad():
                err = (net(gx, gt) - exact).norm() / exact.norm()
            print(f"step {step} loss {loss.item():.5f} rel err {err.item():.4f}")


if __name__ == "__main__":
    main()
