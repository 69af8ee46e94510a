import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind7-a02-energy-tabular",
    "row": None,
    "title": "--grad-accum 8 is parsed and never used: the optimizer steps on every micro-batch of 4",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["config-unused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.035)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--micro-batch", type=int, default=4)
parser.add_argument("--grad-accum", type=int, default=8)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--rows", type=int, default=2240)
parser.add_argument("--hidden", type=int, default=96)
parser.add_argument("--seed", type=int, default=5)
args = parser.parse_args()

torch.manual_seed(args.seed)


def household_table(n):
    x = torch.randn(n, 14)
    y = 0.9 * x[:, 0] - 0.6 * x[:, 1] * (x[:, 2] > 0) + 0.5 * torch.sin(2 * x[:, 3]) + 0.3 * x[:, 4] * x[:, 5]
    y = y + 0.35 * torch.randn(n)
    return x, ((y - y.mean()) / y.std()).unsqueeze(1)


x, y = household_table(args.rows + 600)
train_set = TensorDataset(x[:-600], y[:-600])
x_val, y_val = x[-600:], y[-600:]

net = nn.Sequential(
    nn.Linear(14, args.hidden), nn.SiLU(),
    nn.Linear(args.hidden, args.hidden), nn.SiLU(),
    nn.Linear(args.hidden, 1),
)
opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=args.momentum)
loss_fn = nn.MSELoss()

step = 0
for epoch in range(args.epochs):
    loader = DataLoader(train_set, batch_size=args.micro_batch, shuffle=True, drop_last=True)
    net.train()
    smooth = None
    for xb, yb in loader:
        loss = loss_fn(net(xb), yb)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        if step % 50 == 0:
            print(f"epoch {epoch} step {step} train {smooth:.4f}")
        step += 1
    net.eval()
    with torch.no_grad():
        print(f"epoch {epoch} valid mse {loss_fn(net(x_val), y_val).item():.4f}")
