import argparse

import torch
from torch import nn

TRUTH = {
    "id": "blind-gru-demand",
    "row": 40,
    "title": "hand-written gradient clipping divides by the squared norm (no square root), so a gradient of norm 20 is cut to 0.05 instead of 1",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["grad-clip-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def clip_gradients(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = sum(g.detach().pow(2).sum() for g in grads)
    coef = max_norm / (total + 1e-6)
    if coef < 1:
        for g in grads:
            g.mul_(coef)
    return total


class DemandModel(nn.Module):
    def __init__(self, features=3, hidden=48):
        super().__init__()
        self.rnn = nn.GRU(features, hidden, num_layers=1, batch_first=True)
        self.out = nn.Sequential(nn.Linear(hidden, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h[:, -1])


def demand(n, length, gen):
    start = torch.rand(n, 1, generator=gen) * 24
    hour = start + torch.arange(length + 1)
    level = torch.randn(n, 1, generator=gen)
    trend = torch.randn(n, 1, generator=gen) * 0.05
    y = 6 * torch.sin(hour * 6.2832 / 24) + 4 * level + 3 * trend * torch.arange(length + 1)
    y = y + 0.3 * torch.randn(n, length + 1, generator=gen)
    x = torch.stack([y[:, :-1] / 6, torch.sin(hour[:, :-1] * 0.2618), torch.cos(hour[:, :-1] * 0.2618)], -1)
    return x, y[:, -1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=350)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    torch.manual_seed(10)
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(20)
    xv, yv = demand(512, 24, torch.Generator().manual_seed(21))
    model = DemandModel()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)
    avg = None
    for step in range(args.steps):
        x, y = demand(64, 24, gen)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        g = clip_gradients(list(model.parameters()), args.clip)
        opt.step()
        avg = loss.item() if avg is None else 0.95 * avg + 0.05 * loss.item()
        if (step + 1) % 25 == 0:
            model.eval()
            with torch.no_grad():
                v = nn.functional.mse_loss(model(xv), yv).item()
            model.train()
            print(f"{step + 1:4d} mse {avg:.3f} val {v:.3f} grad {g:.2f}")


if __name__ == "__main__":
    main()
