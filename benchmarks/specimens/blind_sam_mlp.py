"""Sharpness-aware minimisation written by hand around SGD."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-sam-mlp",
    "title": "SAM: two forward/backward passes per optimizer step, weights perturbed in between",
    "family": "mlp",
    "needs": "cpu",
    "trap": "weights change outside of the optimizer, zero_grad between two backwards of one step, same batch used twice",
}


class SAM:
    def __init__(self, params, rho, **kw):
        self.params = [p for p in params]
        self.base = torch.optim.SGD(self.params, **kw)
        self.rho, self._eps = rho, []

    def zero_grad(self):
        self.base.zero_grad(set_to_none=True)

    @torch.no_grad()
    def ascend(self):
        norm = torch.norm(torch.stack([p.grad.norm() for p in self.params]))
        self._eps = []
        for p in self.params:
            e = p.grad * (self.rho / (norm + 1e-12))
            p.add_(e)
            self._eps.append(e)
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for p, e in zip(self.params, self._eps):
            p.sub_(e)
        self.base.step()
        self.zero_grad()


def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.Generator().manual_seed(50)
    x = torch.randn(n, 10, generator=g)
    y = (
        torch.relu(x @ torch.randn(10, 24, generator=w)) @ torch.randn(24, 4, generator=w)
        + 0.5 * torch.randn(n, 4, generator=g)
    ).argmax(1)
    return TensorDataset(x, y)


def main():
    torch.manual_seed(0)
    loader = DataLoader(data(5000, 0), batch_size=100, shuffle=True)
    vx, vy = data(1000, 1).tensors
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    crit = nn.CrossEntropyLoss()
    sam = SAM(net.parameters(), rho=0.05, lr=0.1, momentum=0.9, weight_decay=5e-4)
    epochs = 8
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(sam.base, epochs * len(loader))
    for ep in range(epochs):
        net.train()
        tot = 0.0
        for x, y in loader:
            loss = crit(net(x), y)
            loss.backward()
            sam.ascend()
            crit(net(x), y).backward()
            sam.descend()
            sched.step()
            tot += loss.item()
        net.eval()
        with torch.no_grad():
            out = net(vx)
        print(
            f"epoch {ep} train {tot / len(loader):.4f} val {crit(out, vy).item():.4f} acc {(out.argmax(1) == vy).float().mean().item():.3f}"
        )


if __name__ == "__main__":
    main()
