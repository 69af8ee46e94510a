import argparse
import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-keyword_spotting",
    "title": "Eight micro-batches are accumulated per optimizer step and their mean losses are summed without dividing by eight, so the gradient is eight times too large for the SGD rate.",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["accumulation-not-normalised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def words(n, seed, classes=10, length=256):
    rng = np.random.default_rng(seed)
    t = np.arange(length) / length
    y = rng.integers(0, classes, n)
    x = np.zeros((n, 1, length), np.float32)
    for i, k in enumerate(y):
        f0, f1 = 4 * 1.3 ** k, 4.0
        env = np.exp(-((t - rng.uniform(0.35, 0.65)) / 0.2) ** 2)
        x[i, 0] = env * np.sin(2 * np.pi * (f0 * t + f1 * t * t / 2) + rng.uniform(0, 6)) + 0.25 * rng.normal(size=length)
    return torch.from_numpy(x), torch.from_numpy(y)


class DSConv(nn.Module):
    def __init__(self, i, o, k, s):
        super().__init__()
        self.dw = nn.Conv1d(i, i, k, s, k // 2, groups=i)
        self.pw = nn.Conv1d(i, o, 1)
        self.norm = nn.GroupNorm(4, o)

    def forward(self, x):
        return F.relu(self.norm(self.pw(self.dw(x))))


class KWS(nn.Module):
    def __init__(self, classes, w=32):
        super().__init__()
        self.stem = nn.Conv1d(1, w, 15, 2, 7)
        self.layers = nn.ModuleList([DSConv(w, w, 9, 2), DSConv(w, 2 * w, 9, 2), DSConv(2 * w, 2 * w, 5, 1)])
        self.fc = nn.Linear(2 * w, classes)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for l in self.layers:
            x = l(x)
        return self.fc(x.mean(-1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--micro-batch", type=int, default=8)
    p.add_argument("--accum", type=int, default=8)
    p.add_argument("--updates", type=int, default=80)
    p.add_argument("--lr", type=float, default=0.06)
    p.add_argument("--momentum", type=float, default=0.9)
    p.add_argument("--warmup", type=int, default=8)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x, y = words(2500, 0)
    xv, yv = words(400, 1)
    model = KWS(10)
    opt = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=a.momentum, weight_decay=1e-4, nesterov=True)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / a.warmup) * 0.5 * (1 + math.cos(math.pi * min(1, s / a.updates))))
    g = torch.Generator().manual_seed(2)
    log = 0.0
    for it in range(a.updates * a.accum):
        i = torch.randint(0, len(x), (a.micro_batch,), generator=g)
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        log += loss.item()
        if (it + 1) % a.accum == 0:
            opt.step()
            opt.zero_grad(set_to_none=True)
            sched.step()
            u = (it + 1) // a.accum
            if u % 8 == 0:
                with torch.no_grad():
                    acc = (model(xv).argmax(1) == yv).float().mean().item()
                print(f"update {u} loss {log / (8 * a.accum):.4f} val acc {acc:.3f}")
                log = 0.0


if __name__ == "__main__":
    main()
