"""Momentum contrast with a negative queue and a learned temperature."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind-momentum-contrast", "title": "MoCo-like contrastive learning with queue and key encoder", "family": "other", "needs": "cpu",
           "trap": "the key encoder never gets gradients, its parameters move all the same; the loss rises at first while the queue fills"}


class MoCo(nn.Module):
    def __init__(self, d_in=32, d=24, queue=512):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(d_in, 96), nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, d))
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.logit_scale = nn.Parameter(torch.tensor(2.3))
        self.register_buffer("queue", F.normalize(torch.randn(queue, d), dim=1))
        self.register_buffer("ptr", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def momentum(self, m=0.97):
        for a, b in zip(self.k.parameters(), self.q.parameters()):
            a.mul_(m).add_(b, alpha=1 - m)

    @torch.no_grad()
    def push(self, keys):
        i = int(self.ptr)
        self.queue[i:i + len(keys)] = keys
        self.ptr.fill_((i + len(keys)) % len(self.queue))

    def forward(self, a, b):
        q = F.normalize(self.q(a), dim=1)
        with torch.no_grad():
            k = F.normalize(self.k(b), dim=1)
        scale = self.logit_scale.exp().clamp(max=50)
        logits = scale * torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().t()], 1)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long)), k


def world(g):
    mix = torch.randn(8, 32, generator=g)
    centers = torch.randn(60, 8, generator=g)
    return mix, centers


def views(n, g, mix, centers):
    lab = torch.randint(0, len(centers), (n,), generator=g)
    z = centers[lab] + 0.15 * torch.randn(n, 8, generator=g)
    aug = lambda: z @ mix + 0.8 * torch.randn(n, 32, generator=g)
    return aug(), aug(), lab


@torch.no_grad()
def knn(model, bank, test):
    model.eval()
    a, b = F.normalize(model.q(bank[0]), dim=1), F.normalize(model.q(test[0]), dim=1)
    model.train()
    return (bank[2][(b @ a.t()).argmax(1)] == test[2]).float().mean().item()


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(6)
    mix, centers = world(g)
    bank, test = views(600, g, mix, centers), views(300, g, mix, centers)
    model = MoCo()
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    steps = 400
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for s in range(steps):
        a, b, _ = views(64, g, mix, centers)
        loss, k = model(a, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        model.momentum()
        model.push(k)
        if (s + 1) % 50 == 0:
            print(f"{s + 1} loss {loss.item():.3f} scale {model.logit_scale.exp().item():.2f} knn {knn(model, bank, test):.3f}")


main()
