"""Train a patch transformer on one task, then adapt it to another with low-rank adapters."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-b34-lora-vision",
    "title": "patch transformer adapted with LoRA on a frozen backbone plus a new head",
    "family": "other",
    "needs": "cpu",
    "trap": "most parameters frozen, lora_b starts at zero so lora_a has no gradient at the first step, only a small share of weights moves",
}


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        n = self.n1(x)
        q, k, v = (m(n).view(b, t, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class PatchNet(nn.Module):
    def __init__(self, classes, d=48):
        super().__init__()
        self.patch = nn.Conv2d(1, d, 4, 4)
        self.pos = nn.Parameter(0.02 * torch.randn(1, 16, d))
        self.layers = nn.ModuleList(Layer(d, 4) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        for l in self.layers:
            x = l(x)
        return self.head(self.norm(x).mean(1))


def images(n, g):
    u = torch.linspace(0, 1, 16)
    yy, xx = torch.meshgrid(u, u, indexing="ij")
    k = torch.randint(0, 4, (n,), generator=g)
    f = torch.randint(2, 5, (n,), generator=g)
    th = k.float() * math.pi / 4
    ph = torch.rand(n, generator=g) * 6.28
    d = xx * th.cos()[:, None, None] + yy * th.sin()[:, None, None]
    img = torch.sin(2 * math.pi * f[:, None, None] * d + ph[:, None, None])
    return (img + 0.4 * torch.randn(n, 16, 16, generator=g)).unsqueeze(1), k, f - 2


def fit(model, g, pick, steps, lr, tag):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, lr, total_steps=steps, pct_start=0.1)
    print(tag, "trainable", sum(p.numel() for p in params), "of", sum(p.numel() for p in model.parameters()))
    for s in range(steps):
        model.train()
        x, *ys = images(48, g)
        loss = F.cross_entropy(model(x), ys[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if (s + 1) % 40 == 0:
            model.eval()
            with torch.no_grad():
                x, *ys = images(400, torch.Generator().manual_seed(55))
                acc = (model(x).argmax(1) == ys[pick]).float().mean()
            print(f"{tag} {s + 1} loss {loss.item():.3f} acc {acc:.3f}")


if __name__ == "__main__":
    torch.manual_seed(3)
    g = torch.Generator().manual_seed(3)
    net = PatchNet(4)
    fit(net, g, 0, 160, 2e-3, "base")
    net.requires_grad_(False)
    for layer in net.layers:
        for name in ("q", "v", "up", "down"):
            setattr(layer, name, LoRALinear(getattr(layer, name)))
    net.head = nn.Linear(48, 3)
    fit(net, g, 1, 160, 5e-3, "lora")
