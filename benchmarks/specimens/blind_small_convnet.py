import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-small-convnet",
    "row": None,
    "title": "weight decay 0.5 with lr 0.05: the weights shrink to nothing and the classifier stays at chance",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["weight-decay-too-strong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--wd", type=float, default=5e-1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--epochs", type=int, default=8)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)


def textures(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 6, (n,), generator=g)
    ang = y.float() * torch.pi / 6 + 0.1 * torch.randn(n, generator=g)
    yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    phase = torch.rand(n, generator=g) * 6.28
    wave = torch.sin(
        0.9 * (xx[None] * ang.cos()[:, None, None] + yy[None] * ang.sin()[:, None, None]) + phase[:, None, None]
    )
    return (wave + 0.5 * torch.randn(n, 16, 16, generator=g)).unsqueeze(1), y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 16, 64)
        self.fc2 = nn.Linear(64, 6)
        for m in (self.conv1, self.conv2, self.fc1):
            nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            nn.init.zeros_(m.bias)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


xtr, ytr = textures(2560, 1)
xva, yva = textures(600, 2)
net = Net()
steps = args.epochs * (len(xtr) // args.batch)
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.wd)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)

for epoch in range(args.epochs):
    net.train()
    perm = torch.randperm(len(xtr))
    running = 0.0
    for k in range(0, len(perm) - args.batch + 1, args.batch):
        idx = perm[k : k + args.batch]
        optimizer.zero_grad()
        loss = F.cross_entropy(net(xtr[idx]), ytr[idx])
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.item()
    net.eval()
    with torch.no_grad():
        acc = (net(xva).argmax(1) == yva).float().mean().item()
        norm = sum(p.pow(2).sum() for p in net.parameters()).sqrt().item()
    print(f"epoch {epoch}: loss {running / (len(xtr) // args.batch):.4f}  val acc {acc:.3f}  |w| {norm:.3f}")
