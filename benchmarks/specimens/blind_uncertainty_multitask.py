import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-uncertainty-multitask",
    "title": "two regressions and a classification weighted by learned log-variances; early stopping on validation",
    "family": "mlp",
    "needs": "cpu",
    "trap": "the total loss goes below zero; the loss has parameters of its own; training stops before the last epoch",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.a, self.b, self.c = nn.Linear(64, 1), nn.Linear(64, 1), nn.Linear(64, 3)

    def forward(self, x):
        h = self.trunk(x)
        return self.a(h).squeeze(1), self.b(h).squeeze(1), self.c(h)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.logvar = nn.Parameter(torch.zeros(3))

    def forward(self, out, tgt):
        parts = torch.stack([F.mse_loss(out[0], tgt[0]), F.mse_loss(out[1], tgt[1]), F.cross_entropy(out[2], tgt[2])])
        return (parts * torch.exp(-self.logvar) + 0.5 * self.logvar).sum(), parts


def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    a = torch.tanh(x[:, 0] + x[:, 1]) + 0.1 * torch.randn(n, generator=g)
    b = 0.3 * x[:, 2] * x[:, 3] + 0.1 * torch.randn(n, generator=g)
    c = torch.stack([x[:, 4], x[:, 5], x[:, 6]], 1).argmax(1)
    return TensorDataset(x, a, b, c)


torch.manual_seed(0)
loader, val = DataLoader(data(2048, 0), 64, shuffle=True), data(512, 1)
net, crit = Net(), Weighted()
opt = torch.optim.Adam([{"params": net.parameters(), "lr": 2e-3}, {"params": crit.parameters(), "lr": 1e-2}])
best, bad = float("inf"), 0
for epoch in range(18):
    net.train()
    for x, *t in loader:
        loss, _ = crit(net(x), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        v, parts = crit(net(val.tensors[0]), val.tensors[1:])
    print(f"epoch {epoch} val {v:.4f} parts {[round(p, 3) for p in parts.tolist()]} logvar {[round(p, 2) for p in crit.logvar.tolist()]}")
    if v < best - 0.01:
        best, bad = v.item(), 0
    else:
        bad += 1
        if bad == 2:
            print("early stop")
            break
