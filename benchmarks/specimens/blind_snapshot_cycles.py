import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {"id": "blind-snapshot-cycles", "title": "CNN with warm restarts, a snapshot ensemble and mixup", "family": "cnn", "needs": "cpu",
           "trap": "the learning rate jumps up at every restart and the loss with it; mixup keeps the training loss far above zero"}

PROTO = torch.randn(8, 3, 10, 10, generator=torch.Generator().manual_seed(0))


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 8, (n,), generator=g)
    return TensorDataset(PROTO[y] + 3.0 * torch.randn(n, 3, 10, 10, generator=g), y)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 24, 3, padding=1)
        self.b1 = nn.BatchNorm2d(24)
        self.c2 = nn.Conv2d(24, 48, 3, padding=1, stride=2)
        self.b2 = nn.BatchNorm2d(48)
        self.fc = nn.Linear(48 * 25, 8)

    def forward(self, x):
        x = F.relu(self.b1(self.c1(x)))
        x = F.relu(self.b2(self.c2(x)))
        return self.fc(x.flatten(1))


def mixup(x, y, alpha=0.2):
    lam = torch.distributions.Beta(alpha, alpha).sample().item()
    j = torch.randperm(len(x))
    return lam * x + (1 - lam) * x[j], y, y[j], lam


torch.manual_seed(0)
train, test = DataLoader(make(1600, 1), 32, shuffle=True), make(500, 2)
net = ConvNet()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
CYCLE = 2                                    # epochs per cycle
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=CYCLE * len(train))
members = []
for epoch in range(3 * CYCLE):
    net.train()
    tot = 0.0
    for x, y in train:
        mx, ya, yb, lam = mixup(x, y)
        out = net(mx)
        loss = lam * F.cross_entropy(out, ya) + (1 - lam) * F.cross_entropy(out, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        tot += loss.item()
    if (epoch + 1) % CYCLE == 0:
        members.append(copy.deepcopy(net).eval())
    net.eval()
    with torch.no_grad():
        tx, ty = test.tensors
        acc = (net(tx).argmax(1) == ty).float().mean().item()
        ens = sum(m(tx).softmax(1) for m in members).argmax(1).eq(ty).float().mean().item() if members else float("nan")
    print(f"epoch {epoch} loss {tot / len(train):.3f} acc {acc:.3f} ensemble {ens:.3f}")
