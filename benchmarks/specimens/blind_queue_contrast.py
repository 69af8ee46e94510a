import copy
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-queue-contrast",
    "title": "momentum-encoder contrastive learning with a bounded queue of keys and a learned temperature",
    "family": "other",
    "needs": "cpu",
    "trap": "the loss rises while the queue fills, the key encoder gets no gradients, tensors are kept from step to step",
}


class Encoder(nn.Module):
    def __init__(self, d_in=40, d_out=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(d_in, 96),
            nn.LayerNorm(96),
            nn.GELU(),
            nn.Linear(96, 96),
            nn.LayerNorm(96),
            nn.GELU(),
            nn.Linear(96, d_out),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class Moco(nn.Module):
    def __init__(self, momentum=0.97, queue=16):
        super().__init__()
        self.query = Encoder()
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.log_scale = nn.Parameter(torch.tensor(2.0))
        self.momentum, self.queue = momentum, deque(maxlen=queue)

    @torch.no_grad()
    def follow(self):
        for k, q in zip(self.key.parameters(), self.query.parameters()):
            k.lerp_(q, 1 - self.momentum)

    def forward(self, a, b):
        q = self.query(a)
        with torch.no_grad():
            k = self.key(b)
        bank = torch.cat([k, *self.queue])
        logits = self.log_scale.exp().clamp(max=50) * q @ bank.t()
        self.queue.append(k)
        return F.cross_entropy(logits, torch.arange(len(q))), logits


def pairs(n, gen, mix):
    z = torch.randn(n, 6, generator=gen)
    nuisance = torch.randn(2, n, 10, generator=gen)
    views = [torch.tanh(torch.cat([z, e], 1) @ mix) + 0.05 * torch.randn(n, 40, generator=gen) for e in nuisance]
    return z, views


def probe(model, gen, mix):
    """Linear read-out of the shared factors from the frozen features."""
    model.query.eval()
    with torch.no_grad():
        z, (a, _) = pairs(2000, gen, mix)
        f = torch.cat([model.query(a), torch.ones(2000, 1)], 1)
        w = torch.linalg.lstsq(f[:1000], z[:1000]).solution
        r2 = 1 - (f[1000:] @ w - z[1000:]).pow(2).mean() / z[1000:].var()
    model.query.train()
    return r2.item()


def main(steps=400, batch=64):
    torch.manual_seed(2)
    torch.set_num_threads(1)
    mix = torch.randn(16, 40, generator=torch.Generator().manual_seed(12)) * 0.35
    gen, pgen = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    model = Moco()
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for step in range(1, steps + 1):
        _, (a, b) = pairs(batch, gen, mix)
        loss, logits = model(a, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        model.follow()
        if step % 40 == 0:
            top1 = (logits.argmax(1) == torch.arange(batch)).float().mean().item()
            print(
                f"step {step} loss {loss.item():.3f} top1 {top1:.2f} scale {model.log_scale.exp().item():.1f} probe R2 {probe(model, pgen, mix):.3f}"
            )


if __name__ == "__main__":
    main()
