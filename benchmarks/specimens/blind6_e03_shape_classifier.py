import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

TRUTH = {
    "id": "blind6-e03-shape-classifier",
    "row": None,
    "title": "eight micro-batch losses are accumulated without dividing by eight, SGD steps are 8x too large",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["accumulation-not-normalised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

CFG = dict(classes=8, micro_batch=16, accumulate=8, epochs=8, lr=0.1, momentum=0.9, weight_decay=1e-4, amp=True)


def build_images(n, classes, size=16):
    g = torch.Generator().manual_seed(5)
    y = torch.randint(0, classes, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    ang = y.float() * math.pi / classes
    phase = torch.rand(n, generator=g) * 6.28
    wave = ang.cos()[:, None, None] * xx + ang.sin()[:, None, None] * yy
    img = torch.sin(7 * wave + phase[:, None, None]) + 0.5 * torch.randn(n, size, size, generator=g)
    return img[:, None], y


class SmallNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 5, padding=2)
        self.conv = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(24, 24, 3, stride=2, padding=1)
        self.n0, self.n1, self.n2 = nn.GroupNorm(3, 12), nn.GroupNorm(4, 24), nn.GroupNorm(4, 24)
        self.fc = nn.Linear(24 * 4, classes)

    def forward(self, x):
        x = F.gelu(self.n0(self.stem(x)))
        x = F.gelu(self.n1(self.conv(x)))
        x = F.gelu(self.n2(self.conv2(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 2).flatten(1))


def accuracy(model, loader):
    model.eval()
    hit = tot = 0
    with torch.inference_mode():
        for x, y in loader:
            hit += (model(x).argmax(1) == y).sum().item()
            tot += y.numel()
    model.train()
    return hit / tot


def main():
    torch.manual_seed(1)
    full = TensorDataset(*build_images(2048 + 400, CFG["classes"]))
    train, val = random_split(full, [2048, 400])
    loader = DataLoader(train, CFG["micro_batch"], shuffle=True, drop_last=True)
    vloader = DataLoader(val, 200)
    model = SmallNet(CFG["classes"])
    opt = torch.optim.SGD(model.parameters(), lr=CFG["lr"], momentum=CFG["momentum"], weight_decay=CFG["weight_decay"], nesterov=True)
    updates = CFG["epochs"] * (len(loader) // CFG["accumulate"])
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, updates)
    opt.zero_grad()
    for epoch in range(CFG["epochs"]):
        total = 0.0
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=CFG["amp"]):
                logits = model(x)
            loss = F.cross_entropy(logits.float(), y)
            loss.backward()
            total += loss.item()
            if (i + 1) % CFG["accumulate"] == 0:
                opt.step()
                opt.zero_grad()
                sched.step()
        print(f"epoch {epoch} loss {total / len(loader):.3f} val acc {accuracy(model, vloader):.3f}")


main()
