"""The loss is scaled for mixed precision, but the loop calls optimizer.step() instead of scaler.step(optimizer). The
gradients keep their scale of 65536 and the first update throws the weights away."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-loss-scale-misused-step-cnn",
    "row": None,
    "title": "scaled gradients go straight into the optimizer",
    "family": "cnn",
    "kind": "numeric",
    "contracts": ["C-LOSSSCALE-001", "C-TRAINSTABLE-001"],
    "root_causes": ["loss-scale-misused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def samples(count):
    labels = torch.randint(0, 2, (count,))
    images = torch.randn(count, 1, 8, 8)
    images[labels == 1, 0, 2:6, 2:6] += 1.0
    return TensorDataset(images, labels)


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 2)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu")
        self.loader = DataLoader(samples(640), batch_size=32, shuffle=True)

    def train_step(self, images, labels):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(self.model(images).float(), labels)
        self.scaler.scale(loss).backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, epochs):
        for epoch in range(epochs):
            losses = [self.train_step(*batch) for batch in self.loader]
            print(f"epoch {epoch}", " ".join(f"{loss:.3g}" for loss in losses[:4]), f"... {losses[-1]:.3g}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(2)
    Trainer().fit(epochs=4)
