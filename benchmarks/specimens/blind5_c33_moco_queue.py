import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind5-c33-moco-queue", "title": "MoCo: momentum key encoder, growing then fixed negative queue, learned temperature", "family": "other",
           "needs": "cpu", "trap": "key encoder has no gradient and is no part of the optimizer, loss RISES at first as the queue fills, then falls"}


class Encoder(nn.Module):
    def __init__(self, d_in=40, d=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d_in, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU())
        self.proj = nn.Linear(128, d)

    def forward(self, x):
        return F.normalize(self.proj(self.body(x)), dim=-1)


class MoCo(nn.Module):
    def __init__(self, size=1024, m=0.99):
        super().__init__()
        self.q = Encoder()
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.log_t = nn.Parameter(torch.tensor(0.2).log())
        self.m, self.size = m, size
        self.register_buffer("queue", torch.empty(0, 32))

    @torch.no_grad()
    def momentum_update(self):
        for a, b in zip(self.k.parameters(), self.q.parameters()):
            a.lerp_(b, 1 - self.m)

    def forward(self, v1, v2):
        q = self.q(v1)
        with torch.no_grad():
            k = self.k(v2)
        t = self.log_t.clamp(min=-3.0).exp()
        pos = (q * k).sum(-1, keepdim=True)
        bank = self.queue if len(self.queue) else k.roll(1, 0)
        logits = torch.cat([pos, q @ bank.t()], 1) / t
        self.queue = torch.cat([self.queue, k])[-self.size:]
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def main():
    torch.manual_seed(19)
    centers = torch.randn(3000, 10)
    lift = torch.randn(10, 40) / 10 ** 0.5
    labels = (centers[:, :3] > 0).long() @ torch.tensor([1, 2, 4])

    def views(idx):
        base = centers[idx] @ lift
        return base + 0.3 * torch.randn(len(idx), 40), base + 0.3 * torch.randn(len(idx), 40)

    model = MoCo()
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.Adam(params, lr=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=5 * 46)
    for epoch in range(5):
        total = 0.0
        for idx in torch.randperm(3000)[:46 * 64].view(46, 64):
            loss = model(*views(idx))
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            model.momentum_update()
            total += loss.item()
        with torch.no_grad():
            z = model.q(centers @ lift)
            sim = z[:500] @ z[500:].t()
            knn = labels[500:][sim.topk(5, 1).indices].mode(1).values
            acc = (knn == labels[:500]).float().mean().item()
        print(f"epoch {epoch} loss {total / 46:.3f} temp {model.log_t.exp().item():.3f} knn acc {acc:.3f}")


main()
