import copy
import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-ctl_byol_tab",
    "title": "Healthy BYOL-style self-supervision on noisy spectra with an EMA target and a linear probe at the end.",
    "family": "other",
    "needs": "cpu",
    "trap": "Targets are computed under no_grad by a frozen copy that moves, the loss may rise at first, batch norm in the projectors, the probe is trained on a frozen encoder in eval mode.",
}

CFG = {"classes": 6, "length": 64, "width": 32, "proj": 32, "batch": 96, "steps": 160, "lr": 2e-3, "tau": 0.97, "probe_steps": 80}


def spectra(n, seed, c):
    rng = np.random.default_rng(seed)
    base = np.random.default_rng(3)
    peaks, widths = base.uniform(5, c["length"] - 5, (c["classes"], 4)), base.uniform(1.5, 4, (c["classes"], 4))
    y = rng.integers(0, c["classes"], n)
    t = np.arange(c["length"])
    x = np.exp(-((t[None, None] - peaks[y][:, :, None]) / widths[y][:, :, None]) ** 2).sum(1)
    x = x * rng.uniform(0.6, 1.4, (n, 1)) + 0.15 * rng.normal(size=x.shape)
    return torch.tensor(x[:, None], dtype=torch.float32), torch.from_numpy(y)


def augment(x, g):
    x = x * (0.7 + 0.6 * torch.rand(len(x), 1, 1, generator=g)) + 0.1 * torch.randn(x.shape, generator=g)
    return torch.roll(x, int(torch.randint(-2, 3, (1,), generator=g)), -1)


class Backbone(nn.Module):
    def __init__(self, c):
        super().__init__()
        w = c["width"]
        self.conv = nn.Sequential(nn.Conv1d(1, w, 7, 2, 3), nn.BatchNorm1d(w), nn.ReLU(), nn.Conv1d(w, w, 5, 2, 2), nn.BatchNorm1d(w),
                                  nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten())
        self.proj = nn.Sequential(nn.Linear(8 * w, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, c["proj"]))

    def forward(self, x):
        return self.proj(self.conv(x))


def neg_cos(p, z):
    return 2 - 2 * (F.normalize(p, dim=-1) * F.normalize(z, dim=-1)).sum(-1).mean()


def main():
    c = CFG
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = spectra(2000, 0, c)
    xv, yv = spectra(400, 1, c)
    online = Backbone(c)
    predictor = nn.Sequential(nn.Linear(c["proj"], 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, c["proj"]))
    target = copy.deepcopy(online).requires_grad_(False)
    opt = torch.optim.AdamW([*online.parameters(), *predictor.parameters()], lr=c["lr"], weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 10) * 0.5 * (1 + math.cos(math.pi * s / c["steps"])))
    g = torch.Generator().manual_seed(0)
    for step in range(c["steps"]):
        b = x[torch.randint(0, len(x), (c["batch"],), generator=g)]
        v1, v2 = augment(b, g), augment(b, g)
        with torch.no_grad():
            t1, t2 = target(v1), target(v2)
        loss = neg_cos(predictor(online(v1)), t2) + neg_cos(predictor(online(v2)), t1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        with torch.no_grad():
            for a, q in zip(target.parameters(), online.parameters()):
                a.lerp_(q, 1 - c["tau"])
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} spread {F.normalize(t1, dim=-1).std(0).mean().item():.4f}")
    online.eval().requires_grad_(False)
    probe = nn.Linear(8 * c["width"], c["classes"])
    po = torch.optim.Adam(probe.parameters(), lr=1e-2)
    feats, fv = online.conv(x), online.conv(xv)
    for s in range(c["probe_steps"]):
        i = torch.randint(0, len(x), (128,), generator=g)
        loss = F.cross_entropy(probe(feats[i]), y[i])
        po.zero_grad()
        loss.backward()
        po.step()
    print("probe loss", loss.item(), "accuracy", (probe(fv).argmax(1) == yv).float().mean().item())


if __name__ == "__main__":
    main()
