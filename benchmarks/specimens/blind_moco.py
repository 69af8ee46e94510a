import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-moco",
    "title": "momentum-contrast learning with a queue of 2048 negatives and a learned temperature",
    "family": "other",
    "needs": "cpu",
    "trap": "loss rises while the queue of random vectors is replaced, momentum encoder without gradients changes every step, a large queue held in memory, scalar temperature parameter",
}


@dataclass
class Cfg:
    dim_in: int = 48
    dim: int = 24
    queue: int = 2048
    momentum: float = 0.98
    batch: int = 128
    steps: int = 400
    lr: float = 2e-3


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(c.dim_in, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 64), nn.GELU(), nn.Linear(64, c.dim)
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class MoCo(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.q = Encoder(c)
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.2)))
        self.register_buffer("queue", F.normalize(torch.randn(c.queue, c.dim), dim=-1))
        self.ptr, self.m = 0, c.momentum

    def forward(self, a, b):
        q = self.q(a)
        with torch.no_grad():
            for pk, pq in zip(self.k.parameters(), self.q.parameters()):
                pk.mul_(self.m).add_(pq, alpha=1 - self.m)
            k = self.k(b)
        logits = torch.cat([(q * k).sum(-1, keepdim=True), q @ self.queue.clone().t()], 1)
        logits = logits * self.log_scale.clamp(max=math.log(30)).exp()
        n = len(k)
        idx = (self.ptr + torch.arange(n)) % len(self.queue)
        self.queue[idx] = k
        self.ptr = (self.ptr + n) % len(self.queue)
        return F.cross_entropy(logits, torch.zeros(n, dtype=torch.long)), (logits.argmax(1) == 0).float().mean()


class Views:
    def __init__(self, c, seed):
        self.mix = torch.randn(8, c.dim_in, generator=torch.Generator().manual_seed(0)) / 8**0.5
        self.g = torch.Generator().manual_seed(seed)

    def pair(self, n):
        z = torch.randn(n, 8, generator=self.g) * 1.5
        base = z @ self.mix

        def view():
            keep = (torch.rand(base.shape, generator=self.g) > 0.2).float()
            return (base + 0.2 * torch.randn(base.shape, generator=self.g)) * keep

        return view(), view()


def retrieval(enc, views):
    enc.eval()
    a, b = views.pair(512)
    with torch.no_grad():
        hit = ((enc(a) @ enc(b).t()).argmax(1) == torch.arange(512)).float().mean().item()
    enc.train()
    return hit


if __name__ == "__main__":
    torch.manual_seed(0)
    c = Cfg()
    model, train, test = MoCo(c), Views(c, 1), Views(c, 2)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=c.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, c.steps)
    for step in range(c.steps):
        loss, acc = model(*train.pair(c.batch))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 40 == 0 or step == c.steps - 1:
            print(
                f"step {step} loss {loss.item():.4f} acc {acc.item():.3f} scale {model.log_scale.exp().item():.2f} retrieval {retrieval(model.q, test):.3f}"
            )
