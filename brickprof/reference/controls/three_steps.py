"""Three updates of a convolutional network, the loss rising a little by the luck of the batches."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "three-steps",
    "title": "three updates with warm-up",
    "family": "cnn",
    "trap": "too short for anything to be learnt; the schedule's warm-up is longer than the run",
    "needs": "cpu",
}


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    images, labels = torch.randn(24, 3, 16, 16), torch.randint(0, 10, (24,))
    for x, y in zip(images.split(8), labels.split(8), strict=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
