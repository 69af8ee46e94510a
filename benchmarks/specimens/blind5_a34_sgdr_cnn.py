"""Texture classification, cosine warm restarts, averaged weights for evaluation."""
import math

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {"id": "blind5-a34-sgdr-cnn", "title": "CNN with warm restarts (20+40+80+160 steps), EMA weights, mixup",
           "family": "cnn", "needs": "cpu",
           "trap": "lr jumps up at restarts with small loss bumps, mixup keeps the train loss above zero, a second copy of the model"}

T0, CYCLES = 20, 4
TOTAL = T0 * (2 ** CYCLES - 1)


def textures(n, size=20):
    y = torch.randint(0, 6, (n,))
    ang = y.float() * math.pi / 6
    yy, xx = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")
    proj = xx[None] * ang.cos()[:, None, None] + yy[None] * ang.sin()[:, None, None]
    img = torch.sin(0.9 * proj + torch.rand(n, 1, 1) * 6.28)
    return (img + 1.8 * torch.randn(n, size, size)).unsqueeze(1), y


def mixup(x, y, k, a=0.2):
    lam = torch.distributions.Beta(a, a).sample()
    idx = torch.randperm(len(x))
    t = nn.functional.one_hot(y, k).float()
    return lam * x + (1 - lam) * x[idx], lam * t + (1 - lam) * t[idx]


def net():
    def blk(i, o):
        return [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*blk(1, 16), *blk(16, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 6))


def evaluate(model, dl):
    model.eval()
    with torch.no_grad():
        r = [(model(x).argmax(1) == y).float().mean().item() for x, y in dl]
    model.train()
    return sum(r) / len(r)


def main():
    torch.manual_seed(14)
    train = DataLoader(TensorDataset(*textures(2400)), 48, shuffle=True)
    val = DataLoader(TensorDataset(*textures(600)), 200)
    model = net()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.97))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    sched = CosineAnnealingWarmRestarts(opt, T_0=T0, T_mult=2, eta_min=5e-4)
    step = 0
    while step < TOTAL:
        for x, y in train:
            xm, t = mixup(x, y, 6)
            loss = nn.functional.cross_entropy(model(xm), t)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            ema.update_parameters(model)
            step += 1
            if step % 30 == 0:
                print(f"step {step} lr {opt.param_groups[0]['lr']:.4f} loss {loss.item():.4f} acc {evaluate(model, val):.3f}")
            if step == TOTAL:
                break
    update_bn(train, ema)
    print(f"final acc {evaluate(model, val):.3f}  ema acc {evaluate(ema, val):.3f}")


if __name__ == "__main__":
    main()
