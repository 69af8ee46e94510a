"""Six yes-or-no labels at once, some of them rare, so that the loss weighs their yes more."""

import torch
from torch import nn

TRUTH = {
    "id": "bce-rare-labels",
    "title": "several labels, rare ones weighted",
    "family": "mlp",
    "trap": "targets are mostly zero; a batch may have no positive sample of a label at all",
    "needs": "cpu",
}


class Alarm:
    def __init__(self):
        self.to_label = torch.randn(12, 6)
        self.offset = torch.tensor([0.0, 0.0, -2.0, -3.0, -4.0, -5.0])

    def sample(self, count):
        x = torch.randn(count, 12)
        return x, (x @ self.to_label + self.offset > 0).float()


def main():
    torch.manual_seed(1)
    alarm = Alarm()
    _, many = alarm.sample(4000)
    share = many.mean(0)
    criterion = nn.BCEWithLogitsLoss(pos_weight=((1 - share) / share).clamp(max=10))
    model = nn.Sequential(nn.Linear(12, 40), nn.Mish(), nn.Linear(40, 6))
    optimizer = torch.optim.RAdam(model.parameters(), lr=6e-3)
    for step in range(240):
        x, y = alarm.sample(48)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
