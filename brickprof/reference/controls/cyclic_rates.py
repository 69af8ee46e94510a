"""A learning rate that goes up and down all the time, and momentum against it."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cyclic-rates",
    "title": "a triangular learning rate with momentum against it",
    "family": "cnn",
    "trap": "the learning rate rises and falls five times; the loss waves with it",
    "needs": "cpu",
}


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(1, 12, 7, padding=3)
        self.back = nn.Conv1d(12, 12, 5, padding=2)
        self.norm1, self.norm2 = nn.BatchNorm1d(12), nn.BatchNorm1d(12)
        self.say = nn.Linear(12, 3)

    def forward(self, x):
        x = F.max_pool1d(F.relu(self.norm1(self.front(x))), 2)
        return self.say(F.relu(self.norm2(self.back(x))).mean(2))


def sounds(count):
    label = torch.randint(0, 3, (count,))
    t = torch.arange(40.0)
    pitch = torch.tensor([0.4, 0.8, 1.4])[label][:, None]
    return (torch.sin(pitch * t + 6.28 * torch.rand(count, 1)) + 0.7 * torch.randn(count, 40)).unsqueeze(1), label


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Listener()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    cycle = torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.005, max_lr=0.1, step_size_up=20)
    for step in range(200):
        x, y = sounds(40)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {cycle.get_last_lr()[0]:.4f}")
