"""Contrastive pairing of sensor traces with their event descriptions."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-b36-clip-pairs",
    "title": "symmetric InfoNCE between a GRU over traces and a bag of words, learned temperature",
    "family": "lstm",
    "needs": "cpu",
    "trap": "the temperature grows all the time, loss starts at ln(batch), duplicates inside a batch keep it above zero, padded words",
}

WORDS, PAD = 40, 0


def sample(n, g):
    """A trace is made of 3 events; its text names the events in any order, with filler words."""
    ev = torch.stack([torch.randperm(12, generator=g)[:3] for _ in range(n)])
    t = torch.arange(16).float()
    segs = torch.stack([torch.sin(2 * math.pi * t * (1 + ev[:, k, None] % 4) / 16) * (1 + ev[:, k, None] // 4)
                        for k in range(3)], 1)
    offs = (ev % 3 - 1).float()[..., None]
    trace = torch.stack([segs, offs.expand_as(segs)], -1).flatten(1, 2)
    trace = trace / 2 + 0.1 * torch.randn(trace.shape, generator=g)
    fill = torch.randint(13, WORDS, (n, 3), generator=g)
    drop = torch.rand(n, 3, generator=g) < 0.4
    text = torch.cat([ev + 1, fill.masked_fill(drop, PAD)], 1)
    perm = torch.rand(text.shape, generator=g).argsort(1)
    return trace, text.gather(1, perm)


class TraceEncoder(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.conv = nn.Conv1d(2, 32, 8, stride=4, padding=2)
        self.gru = nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, d)

    def forward(self, x):
        h = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.out(self.gru(h)[0].mean(1))


class TextEncoder(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.emb = nn.Embedding(WORDS, 48, padding_idx=PAD)
        self.net = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, d))

    def forward(self, ids):
        m = (ids != PAD).float()[..., None]
        return self.net((self.emb(ids) * m).sum(1) / m.sum(1))


class Pairing(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.trace, self.text = TraceEncoder(d), TextEncoder(d)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.2)))

    def forward(self, x, ids):
        a, b = F.normalize(self.trace(x), dim=-1), F.normalize(self.text(ids), dim=-1)
        return self.log_scale.exp().clamp(max=100) * a @ b.T


def main():
    torch.manual_seed(12)
    g = torch.Generator().manual_seed(12)
    model = Pairing()
    slow = [model.log_scale]
    rest = [p for n, p in model.named_parameters() if n != "log_scale"]
    opt = torch.optim.AdamW([{"params": rest, "weight_decay": 0.01}, {"params": slow, "weight_decay": 0.0}], lr=3e-3)
    steps = 400
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    test = sample(64, torch.Generator().manual_seed(1))
    for s in range(1, steps + 1):
        logits = model(*sample(64, g))
        y = torch.arange(64)
        loss = 0.5 * (F.cross_entropy(logits, y) + F.cross_entropy(logits.T, y))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if s % 50 == 0:
            model.eval()
            with torch.no_grad():
                acc = (model(*test).argmax(1) == y).float().mean()
            model.train()
            print(f"{s} loss {loss.item():.3f} scale {model.log_scale.exp().item():.1f} retrieval {acc:.3f}")


if __name__ == "__main__":
    main()
