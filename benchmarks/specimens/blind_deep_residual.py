"""Deep residual MLP over categorical fields (store, product, weekday) for demand classes."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-deep-residual",
    "row": 42,
    "title": "the skip branch is taken from x.data, so no gradient flows along the residual path",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["residual-path-broken", "vanishing-gradients"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

FIELDS = (300, 250, 7)


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(width, width)

    def forward(self, x):
        skip = x.data
        x = self.fc2(self.act(self.fc1(self.norm(x))))
        return x.add(skip)


class Net(nn.Module):
    def __init__(self, width=48, depth=12, classes=4):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(n, width // 3) for n in FIELDS])
        self.blocks = nn.Sequential(*[ResidualBlock(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, ids):
        x = torch.cat([t(ids[:, i]) for i, t in enumerate(self.tables)], 1)
        return self.head(self.norm(self.blocks(x)))


def demand(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.Generator().manual_seed(5)
    effects = [torch.randn(k, generator=w) for k in FIELDS]
    ids = torch.stack([torch.randint(k, (n,), generator=g) for k in FIELDS], 1)
    s = sum(e[ids[:, i]] for i, e in enumerate(effects)) + 0.1 * torch.randn(n, generator=g)
    y = torch.bucketize(s, torch.tensor([-1.2, 0.0, 1.2]))
    return TensorDataset(ids, y)


torch.manual_seed(0)
train = DataLoader(demand(24000, 1), batch_size=128, shuffle=True)
test = demand(2000, 2).tensors
net = Net()
epochs = 2
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=epochs * len(train), pct_start=0.2)
ce = nn.CrossEntropyLoss()
step = 0
for epoch in range(epochs):
    for ids, y in train:
        net.train()
        loss = ce(net(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        step += 1
        if step % 47 == 0:
            net.eval()
            with torch.no_grad():
                out = net(test[0])
            acc = (out.argmax(1) == test[1]).float().mean().item()
            print(f"epoch {epoch} step {step} loss {loss.item():.4f} test {ce(out, test[1]).item():.4f} acc {acc:.3f}")
