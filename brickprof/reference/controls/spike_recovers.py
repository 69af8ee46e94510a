"""Rare measurements are far off. One such batch gives a spike in the loss; clipping keeps it harmless."""

import torch
from torch import nn

TRUTH = {
    "id": "spike-recovers",
    "title": "one noisy spike that recovers at once",
    "family": "mlp",
    "trap": "a single loss ten times the others, back to normal in the next step",
    "needs": "cpu",
}


class Sensor:
    """y = f(x) with noise; in one of the batches two readings are far off."""

    def __init__(self, odd_batch):
        self.odd_batch, self.served = odd_batch, 0
        self.direction = torch.randn(5, 1)

    def read(self, count):
        x = torch.randn(count, 5)
        y = torch.tanh(x @ self.direction) + 0.3 * torch.randn(count, 1)
        if self.served == self.odd_batch:
            y[:2] += 6.0
        self.served += 1
        return x, y


def main():
    torch.manual_seed(0)
    sensor = Sensor(odd_batch=130)
    model = nn.Sequential(nn.Linear(5, 32), nn.ELU(), nn.Linear(32, 32), nn.ELU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(240):
        x, y = sensor.read(48)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        if step % 40 == 0 or step in (130, 131):
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
