import torch
import torch.nn as nn

TRUTH = {
    "id": "blind4-ringflow",
    "title": "Healthy RealNVP density model of narrow two-dimensional clusters.",
    "family": "other",
    "needs": "cpu",
    "trap": "the loss is a negative log-likelihood in continuous space that becomes clearly negative; coupling masks leave half of the inputs of each layer without effect; exp of a scale network",
}


class Coupling(nn.Module):
    def __init__(self, flip, h=64):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 2))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x[:, :1], x[:, 1:]
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = 2 * torch.tanh(s / 2)
        b = b * s.exp() + t
        y = torch.cat([b, a], 1) if self.flip else torch.cat([a, b], 1)
        return y, s.squeeze(1)


class RealNVP(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.layers = nn.ModuleList([Coupling(i % 2 == 1) for i in range(depth)])
        self.log_scale = nn.Parameter(torch.zeros(2))
        self.shift = nn.Parameter(torch.zeros(2))

    def nll(self, x):
        ld = self.log_scale.sum().expand(len(x))
        z = x * self.log_scale.exp() + self.shift
        for l in self.layers:
            z, s = l(z)
            ld = ld + s
        logp = -0.5 * z.pow(2).sum(1) - 1.8378770664
        return -(logp + ld).mean()


def sample(n, gen):
    c = torch.randint(0, 3, (n,), generator=gen)
    centers = torch.tensor([[0.3, 0.1], [-0.2, 0.2], [0.0, -0.25]])
    return centers[c] + 0.02 * torch.randn(n, 2, generator=gen)


torch.set_num_threads(1)
torch.manual_seed(13)
gen = torch.Generator().manual_seed(130)
flow = RealNVP()
opt = torch.optim.Adam(flow.parameters(), lr=4e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 300, eta_min=1e-5)
held = sample(1000, gen)
for i in range(300):
    loss = flow.nll(sample(256, gen))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(flow.parameters(), 2.0)
    opt.step()
    sched.step()
    if i % 30 == 0 or i == 299:
        with torch.no_grad():
            print(f"{i:3d} nll {loss.item():+.4f} held-out {flow.nll(held).item():+.4f}")
