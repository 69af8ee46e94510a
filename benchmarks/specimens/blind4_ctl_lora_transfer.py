import argparse
import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-ctl_lora_transfer",
    "title": "A healthy two-stage run: pretraining, then low-rank adapters and the head are tuned on a rotated domain.",
    "family": "mlp",
    "needs": "cpu",
    "trap": "Adapters are frozen in stage one, the base is frozen in stage two, up-projections start at zero so the down-projections have zero gradient in their first step, the loss jumps up when the domain changes.",
}


class AdaptedLinear(nn.Module):
    def __init__(self, d_in, d_out, rank, alpha):
        super().__init__()
        self.base = nn.Linear(d_in, d_out)
        self.lora_a = nn.Linear(d_in, rank, bias=False)
        self.lora_b = nn.Linear(rank, d_out, bias=False)
        self.scale = alpha / rank
        nn.init.normal_(self.lora_a.weight, std=1 / math.sqrt(d_in))
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + self.scale * self.lora_b(self.lora_a(x))


class AdapterNet(nn.Module):
    def __init__(self, d_in, width, classes, rank=8, alpha=16):
        super().__init__()
        dims = [d_in, width, width, width]
        self.body = nn.ModuleList(AdaptedLinear(a, b, rank, alpha) for a, b in zip(dims, dims[1:]))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        for m in self.body:
            x = F.gelu(m(x))
        return self.head(self.norm(x))


def domain(n, seed, rot, classes=6, d=24):
    rng = np.random.default_rng(seed)
    world = np.random.default_rng(123)
    w1, w2 = world.normal(size=(d, 32)), world.normal(size=(32, classes))
    q, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(d, d)))
    x = rng.normal(size=(n, d))
    y = (np.tanh(x @ w1 / 3) @ w2).argmax(1)
    x = x @ q if rot else x
    return torch.tensor(x, dtype=torch.float32), torch.from_numpy(y)


def fit(model, opt, x, y, steps, batch, seed, tag):
    g = torch.Generator().manual_seed(seed)
    for s in range(steps):
        i = torch.randint(0, len(x), (batch,), generator=g)
        loss = F.cross_entropy(model(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 25 == 0:
            print(f"[{tag}] step {s} loss {loss.item():.4f}")


@torch.no_grad()
def accuracy(model, x, y):
    return (model(x).argmax(1) == y).float().mean().item()


def adapter_groups(model, lr, ratio):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for n, p in named if "lora_a" in n], "lr": lr},
        {"params": [p for n, p in named if "lora_b" in n], "lr": lr * ratio},
        {"params": [p for n, p in named if n.startswith("head")], "lr": lr * 0.1},
    ]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--width", type=int, default=112)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--lora-plus-ratio", type=float, default=4.0)
    ap.add_argument("--pretrain-steps", type=int, default=150)
    ap.add_argument("--tune-steps", type=int, default=220)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = AdapterNet(24, a.width, 6)
    for n, p in net.named_parameters():
        p.requires_grad_("lora" not in n)
    xs, ys = domain(4000, 1, False)
    fit(net, torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-3), xs, ys, a.pretrain_steps, 128, 0, "pretrain")
    print("source accuracy", accuracy(net, xs, ys))
    for n, p in net.named_parameters():
        p.requires_grad_("lora" in n or n.startswith("head"))
    x, y = domain(4000, 2, True)
    xv, yv = domain(1000, 3, True)
    trainable = sum(p.numel() for p in net.parameters() if p.requires_grad)
    print("trainable", trainable, "target accuracy before", accuracy(net, xv, yv))
    opt = torch.optim.AdamW(adapter_groups(net, a.lr, a.lora_plus_ratio), weight_decay=0.0)
    fit(net, opt, x, y, a.tune_steps, 128, 1, "tune")
    print("target accuracy", accuracy(net, xv, yv))


if __name__ == "__main__":
    main()
