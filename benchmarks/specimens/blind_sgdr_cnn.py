import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-sgdr-cnn",
    "title": "CNN with cosine warm restarts (20, 40, 80 batches), the run ends at the end of the third cycle",
    "family": "cnn",
    "needs": "cpu",
    "trap": "the learning rate jumps back to its peak twice and the loss bumps there",
}


def digits(n, seed):
    proto = (torch.rand(10, 1, 14, 14, generator=torch.Generator().manual_seed(3)) > 0.6).float()
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (n,), generator=g)
    x = proto[y] - 0.4 + 0.8 * torch.randn(n, 1, 14, 14, generator=g)
    return TensorDataset(x, y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.c2 = nn.Conv2d(16, 32, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(32)
        self.fc = nn.Linear(32 * 9, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.c1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.c2(x))), 2)
        return self.fc(x.flatten(1))


torch.manual_seed(0)
loader = DataLoader(digits(1280, 0), batch_size=64, shuffle=True)
val = digits(500, 1)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
sched = CosineAnnealingWarmRestarts(opt, T_0=20, T_mult=2)
for epoch in range(7):
    net.train()
    tot = 0.0
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        tot += loss.item()
    net.eval()
    with torch.no_grad():
        acc = (net(val.tensors[0]).argmax(1) == val.tensors[1]).float().mean()
    print(f"epoch {epoch} loss {tot / len(loader):.4f} acc {acc:.3f} lr {opt.param_groups[0]['lr']:.4f}")
