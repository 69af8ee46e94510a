import argparse
import math
import random

import torch
from torch import nn

TRUTH = {
    "id": "blind-rnn-forecast",
    "row": None,
    "title": "gradient clipping is called before backward, on gradients that are still empty, so it never limits anything",
    "family": "lstm",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["grad-clip-not-applied"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--steps", type=int, default=220)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--max-grad-norm", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=3)
    return p.parse_args()


def sample_series(batch, length, gen):
    t = torch.arange(length + 1).float()
    freq = 0.1 + 0.3 * torch.rand(batch, 1, generator=gen)
    phase = 2 * math.pi * torch.rand(batch, 1, generator=gen)
    amp = torch.exp(0.7 * torch.randn(batch, 1, generator=gen)) * 6.0
    y = amp * torch.sin(freq * t + phase) + 0.1 * torch.randn(batch, length + 1, generator=gen)
    return y[:, :-1, None], y[:, 1:, None]


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.RNN(1, hidden, nonlinearity="relu", batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h)


def main():
    args = parse()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)

    net = Forecaster(args.hidden)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    crit = nn.MSELoss()

    run = None
    for step in range(args.steps):
        x, y = sample_series(args.batch, 40, gen)
        opt.zero_grad()
        pred = net(x)
        loss = crit(pred, y)
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), args.max_grad_norm)
        loss.backward()
        opt.step()
        run = loss.item() if run is None else 0.95 * run + 0.05 * loss.item()
        if step % 20 == 0:
            print(f"step {step:4d} mse {loss.item():.4f} avg {run:.4f} norm {float(norm):.3f}")
    print("final", run)


if __name__ == "__main__":
    main()
