"""Low-rank adaptation of a frozen encoder to a shifted task."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind-lora-adapt", "title": "frozen encoder with low-rank adapters and a new head", "family": "other", "needs": "cpu",
           "trap": "most parameters are frozen, the adapters' B matrices start at zero so A gets no gradient in the first step"}


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad = False
        self.A = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features ** 0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.A.t() @ self.B.t())


class Encoder(nn.Module):
    def __init__(self, d=48, classes=6, depth=3):
        super().__init__()
        self.inp = nn.Linear(20, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        h = self.inp(x)
        for lin, n in zip(self.layers, self.norms):
            h = h + F.gelu(lin(n(h)))
        return self.head(h)


def task(n, classes, rot, seed):
    g = torch.Generator().manual_seed(seed)
    c = torch.randn(classes, 20, generator=torch.Generator().manual_seed(31))
    if rot:
        q, _ = torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(rot)))
        c = c @ q
    y = torch.randint(0, classes, (n,), generator=g)
    return c[y] + 0.8 * torch.randn(n, 20, generator=g), y


def fit(model, params, data, test, steps, lr, tag):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.01, total_iters=steps)
    x, y = data
    for s in range(steps):
        i = torch.randint(0, len(x), (48,))
        loss = F.cross_entropy(model(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if (s + 1) % 50 == 0:
            model.eval()
            with torch.no_grad():
                acc = (model(test[0]).argmax(1) == test[1]).float().mean().item()
            model.train()
            print(f"{tag} {s + 1} loss {loss.item():.3f} acc {acc:.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Encoder()
    fit(model, model.parameters(), task(3000, 6, 0, 1), task(500, 6, 0, 2), 150, 3e-3, "base")
    for p in model.parameters():
        p.requires_grad = False
    model.layers = nn.ModuleList(LoRALinear(l) for l in model.layers)
    model.inp = LoRALinear(model.inp)
    model.head = nn.Linear(48, 6)
    trainable = [p for p in model.parameters() if p.requires_grad]
    print("trainable", sum(p.numel() for p in trainable), "of", sum(p.numel() for p in model.parameters()))
    fit(model, trainable, task(3000, 6, 8, 3), task(500, 6, 8, 4), 250, 5e-3, "adapt")
