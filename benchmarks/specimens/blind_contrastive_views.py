import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-contrastive-views",
    "title": "CLIP-like contrastive learning of two views with a learned, clamped temperature",
    "family": "other",
    "needs": "cpu",
    "trap": "no labels but arange; starts at ln(batch); logit scale grows large; clamp of a parameter in place",
}


class Tower(nn.Module):
    def __init__(self, i, d=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(i, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, d))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.img, self.txt = Tower(40), Tower(24)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, a, b):
        return self.logit_scale.exp() * self.img(a) @ self.txt(b).t()


def main():
    torch.manual_seed(0)
    wa, wb = torch.randn(12, 40) / 3, torch.randn(12, 24) / 3

    def pairs(n):
        z = torch.randn(n, 12)
        return torch.tanh(z @ wa) + 0.2 * torch.randn(n, 40), torch.tanh(z @ wb) + 0.2 * torch.randn(n, 24)

    model = Clip()
    opt = torch.optim.AdamW(
        [{"params": [p for n, p in model.named_parameters() if n != "logit_scale"], "weight_decay": 0.05}, {"params": [model.logit_scale], "weight_decay": 0.0}],
        lr=2e-3,
    )
    total, warm = 300, 15
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: (s + 1) / warm if s < warm else 0.5 * (1 + math.cos(math.pi * (s - warm) / (total - warm)))
    )
    for s in range(total):
        a, b = pairs(128)
        logits = model(a, b)
        y = torch.arange(len(a))
        loss = 0.5 * (F.cross_entropy(logits, y) + F.cross_entropy(logits.t(), y))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(100))
        if s % 50 == 0 or s == total - 1:
            acc = (logits.argmax(1) == y).float().mean()
            print(f"{s} loss {loss.item():.4f} top1 {acc:.3f} scale {model.logit_scale.exp().item():.1f}")


main()
