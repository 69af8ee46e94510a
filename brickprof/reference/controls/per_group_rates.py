"""Each part has a learning rate of its own, and biases and norms have no weight decay."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "per-group-rates",
    "title": "parameter groups with learning rates a hundred times apart",
    "family": "cnn",
    "trap": "the stem moves a hundred times slower than the head, as intended",
    "needs": "cpu",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(2, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU())
        self.body = nn.Sequential(nn.Conv1d(16, 24, 5, padding=2, stride=2), nn.BatchNorm1d(24), nn.ReLU())
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).amax(2))


def groups(net, base=2e-2):
    for name, scale in (("stem", 0.01), ("body", 0.1), ("head", 1.0)):
        part = getattr(net, name)
        yield {"params": [p for p in part.parameters() if p.ndim > 1], "lr": base * scale, "weight_decay": 1e-2}
        yield {"params": [p for p in part.parameters() if p.ndim <= 1], "lr": base * scale, "weight_decay": 0.0}


def signals(count):
    label = torch.randint(0, 3, (count,))
    time = torch.arange(32.0)
    speed = torch.tensor([0.3, 0.7, 1.2])[label][:, None]
    wave = torch.sin(speed * time + 6.28 * torch.rand(count, 1))
    return torch.stack([wave, wave.roll(3, 1)], 1) + 0.4 * torch.randn(count, 2, 32), label


torch.set_num_threads(1)
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.AdamW(groups(net))
for step in range(150):
    x, y = signals(48)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.4f}")
