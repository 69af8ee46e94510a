"""A trainer class with callbacks, as frameworks have it: validation every fifty steps, best checkpoint, plateau."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "trainer-class",
    "title": "callbacks, best checkpoint, learning rate cut on a plateau",
    "family": "mlp",
    "trap": "the learning rate drops when the validation stalls; checkpoints are written and one is read at the end",
    "needs": "cpu",
}


class Trainer:
    def __init__(self, model, optimizer, criterion, callbacks):
        self.model, self.optimizer, self.criterion, self.callbacks = model, optimizer, criterion, callbacks
        self.step = 0

    def fit(self, loader, epochs):
        for _ in range(epochs):
            for batch in loader:
                self.training_step(batch)
                for callback in self.callbacks:
                    callback(self)

    def training_step(self, batch):
        self.model.train()
        self.optimizer.zero_grad()
        self.loss = self.criterion(self.model(batch[0]), batch[1])
        self.loss.backward()
        self.optimizer.step()
        self.step += 1


class Validate:
    def __init__(self, loader, schedule, file, every=50):
        self.loader, self.schedule, self.file, self.every, self.best = loader, schedule, file, every, float("inf")

    def __call__(self, trainer):
        if trainer.step % self.every:
            return
        trainer.model.eval()
        with torch.inference_mode():
            losses = [trainer.criterion(trainer.model(x), y).item() for x, y in self.loader]
        score = sum(losses) / len(losses)
        self.schedule.step(score)
        if score < self.best:
            self.best = score
            torch.save(trainer.model.state_dict(), self.file)
        print(f"step {trainer.step} train {trainer.loss.item():.4f} validation {score:.4f}")


def friedman(count):
    x = torch.rand(count, 6)
    y = 2 * torch.sin(3.14 * x[:, 0] * x[:, 1]) + 4 * (x[:, 2] - 0.5) ** 2 + x[:, 3] + 0.1 * torch.randn(count)
    return TensorDataset((x - 0.5) / 0.29, (y - 2).unsqueeze(1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 1))
    adam = torch.optim.Adam(net.parameters(), lr=1e-2)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, factor=0.3, patience=1)
    with tempfile.TemporaryDirectory() as folder:
        best = Path(folder) / "best.pt"
        validate = Validate(DataLoader(friedman(300), 100), plateau, best)
        trainer = Trainer(net, adam, nn.SmoothL1Loss(), [validate])
        trainer.fit(DataLoader(friedman(900), 30, shuffle=True, drop_last=True), epochs=10)
        net.load_state_dict(torch.load(best, weights_only=True))
