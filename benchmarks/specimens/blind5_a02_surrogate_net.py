# surrogate model for a simulator: 10 design variables -> 3 responses
import math
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset, random_split

TRUTH = {
    "id": "blind5-a02-surrogate-net",
    "row": None,
    "title": "twelve plain sigmoid layers without skip or norm: gradients vanish, the early layers do not move",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["vanishing-gradients"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

torch.manual_seed(11)
torch.set_num_threads(1)

DEPTH, WIDTH = 12, 64
EPOCHS, BS = 10, 128


def simulate(n):
    x = torch.rand(n, 10) * 2 - 1
    y0 = torch.sin(math.pi * x[:, 0] * x[:, 1]) + 2 * x[:, 2] ** 2
    y1 = x[:, 3] * x[:, 4] + 0.5 * x[:, 5]
    y2 = torch.exp(-x[:, 6] ** 2) * x[:, 7] + x[:, 8] - x[:, 9]
    y = torch.stack([y0, y1, y2], 1)
    return x, y + 0.02 * torch.randn_like(y)


def build():
    layers = []
    d = 10
    for _ in range(DEPTH):
        layers += [nn.Linear(d, WIDTH), nn.Sigmoid()]
        d = WIDTH
    layers.append(nn.Linear(d, 3))
    return nn.Sequential(*layers)


x, y = simulate(6000)
x = (x - x.mean(0)) / x.std(0)
y = (y - y.mean(0)) / y.std(0)
train_set, val_set = random_split(TensorDataset(x, y), [5200, 800])
train_dl = DataLoader(train_set, batch_size=BS, shuffle=True)
val_dl = DataLoader(val_set, batch_size=400)

net = build()
opt = optim.Adam(net.parameters(), lr=2e-3)
sched = optim.lr_scheduler.CosineAnnealingLR(opt, T_max=EPOCHS * len(train_dl))
crit = nn.MSELoss()

for epoch in range(EPOCHS):
    net.train()
    tot = 0.0
    for xb, yb in train_dl:
        opt.zero_grad()
        loss = crit(net(xb), yb)
        loss.backward()
        opt.step()
        sched.step()
        tot += loss.item() * len(xb)
    net.eval()
    with torch.no_grad():
        val = sum(crit(net(xb), yb).item() * len(xb) for xb, yb in val_dl) / len(val_set)
    print(f"epoch {epoch + 1:2d}  train {tot / len(train_set):.4f}  val {val:.4f}  R2 {1 - val:.3f}")
