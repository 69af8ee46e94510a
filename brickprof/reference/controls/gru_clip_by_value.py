"""A GRU forecasts a noisy wave; gradients are clipped value by value."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "gru-clip-by-value",
    "title": "forecast of a noisy wave, clipping by value",
    "family": "lstm",
    "trap": "the clipping changes the direction of the gradient; the loss has a floor from the noise",
    "needs": "cpu",
}


class Waves(Dataset):
    def __init__(self, count, length=24):
        time = torch.arange(length + 1) / 4
        phase = 2 * math.pi * torch.rand(count, 1)
        speed = 0.5 + torch.rand(count, 1)
        self.waves = torch.sin(speed * time + phase) + 0.1 * torch.randn(count, length + 1)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, i):
        return self.waves[i, :-1, None], self.waves[i, -1:]


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


torch.set_num_threads(1)
torch.manual_seed(4)
loader = DataLoader(Waves(640), batch_size=32, shuffle=True)
model = Forecast()
optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
for epoch in range(7):
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}  mse {sum(losses) / len(losses):.4f}")
