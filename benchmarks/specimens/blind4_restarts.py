from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-restarts",
    "title": "Healthy residual CNN with SGD, a high peak learning rate and cosine warm restarts.",
    "family": "cnn",
    "needs": "cpu",
    "trap": "the learning rate jumps from nearly zero back to 0.1 three times and the loss of single batches is bumpy around each restart",
}


@dataclass
class C:
    peak: float = 0.1
    cycle: int = 50
    cycles: int = 4
    batch: int = 32


class Res(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(ch, ch, 3, padding=1, bias=False), nn.BatchNorm2d(ch)
        self.c2, self.b2 = nn.Conv2d(ch, ch, 3, padding=1, bias=False), nn.BatchNorm2d(ch)

    def forward(self, x):
        return F.relu(x + self.b2(self.c2(F.relu(self.b1(self.c1(x))))))


class ResNet(nn.Module):
    def __init__(self, classes=6, ch=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, ch, 3, padding=1, bias=False), nn.BatchNorm2d(ch), nn.ReLU())
        self.r1, self.r2 = Res(ch), Res(ch)
        self.fc = nn.Linear(ch * 16, classes)

    def forward(self, x):
        x = F.avg_pool2d(self.r1(self.stem(x)), 2)
        return self.fc(F.adaptive_avg_pool2d(self.r2(x), 4).flatten(1))


def glyphs(n, gen):
    proto = torch.randn(6, 16, 16, generator=torch.Generator().manual_seed(1))
    proto = F.avg_pool2d(proto[:, None], 3, 1, 1) * 2.5
    y = torch.randint(0, 6, (n,), generator=gen)
    return proto[y] + 1.8 * torch.randn(n, 1, 16, 16, generator=gen), y


def main(c=C()):
    torch.set_num_threads(1)
    torch.manual_seed(40)
    gen = torch.Generator().manual_seed(41)
    xtr, ytr = glyphs(1600, gen)
    xva, yva = glyphs(300, gen)
    net = ResNet()
    opt = torch.optim.SGD(net.parameters(), lr=c.peak, momentum=0.9, nesterov=True, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=c.cycle, eta_min=1e-4)
    order = torch.randperm(len(xtr), generator=gen)
    at = 0
    for step in range(c.cycle * c.cycles):
        if at + c.batch > len(order):
            order, at = torch.randperm(len(xtr), generator=gen), 0
        idx = order[at:at + c.batch]
        at += c.batch
        loss = F.cross_entropy(net(xtr[idx]), ytr[idx])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0 or step == c.cycle * c.cycles - 1:
            net.eval()
            with torch.no_grad():
                acc = (net(xva).argmax(1) == yva).float().mean().item()
            net.train()
            print(f"{step} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.4f} acc {acc:.3f}")


if __name__ == "__main__":
    main()
