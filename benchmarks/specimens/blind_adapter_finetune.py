import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-adapter-finetune",
    "title": "low-rank adapters on a frozen, pretrained MLP; only adapters and the new head are trained in the second stage",
    "family": "mlp",
    "needs": "cpu",
    "trap": "most parameters are frozen on purpose; the B factors start at zero so the A factors get no gradient at step 0",
}


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.A), self.B)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = nn.Linear(16, 96), nn.Linear(96, 96)
        self.head = nn.Linear(96, 4)

    def forward(self, x):
        return self.head(F.gelu(self.l2(F.gelu(self.l1(x)))))


def task(w):
    def draw(n):
        x = torch.randn(n, 16)
        z = x @ w
        return x, (z + 0.5 * z.roll(1, 1).abs()).argmax(1)

    return draw


def fit(model, draw, params, steps, lr, name):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for s in range(steps):
        x, y = draw(64)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 50 == 0 or s == steps - 1:
            with torch.no_grad():
                vx, vy = draw(500)
                acc = (model(vx).argmax(1) == vy).float().mean()
            print(f"{name} {s} loss {loss.item():.4f} acc {acc:.3f}")


torch.manual_seed(0)
w = torch.randn(16, 4) / 2
net = Backbone()
fit(net, task(w), net.parameters(), 200, 3e-3, "pretrain")
for p in net.parameters():
    p.requires_grad_(False)
net.l1, net.l2 = LoRALinear(net.l1), LoRALinear(net.l2)
net.head = nn.Linear(96, 4)
shifted = task(w[:, torch.tensor([2, 0, 3, 1])] + 0.2 * torch.randn(16, 4))
trainable = [p for p in net.parameters() if p.requires_grad]
fit(net, shifted, trainable, 250, 3e-3, "adapt")
