"""A classifier project with configuration, evaluation, best checkpoint and logging. When a validation is not better
than the best one, evaluate() returns early, before the line that switches the model back to training."""

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

TRUTH = {
    "id": "cause-project-classifier-eval-mode",
    "row": None,
    "title": "an early return leaves the model in eval mode",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-MODE-001"],
    "root_causes": ["model-left-in-eval"],
    "bricks": [],
    "first_step": 120,
    "needs": "cpu",
    "args": ["--epochs", "10"],
}


class ConvBlock(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Classifier(nn.Module):
    def __init__(self, width, classes, dropout):
        super().__init__()
        self.stem = ConvBlock(1, width)
        self.stage1 = ConvBlock(width, width)
        self.stage2 = ConvBlock(width, 2 * width, stride=2)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = self.stage2(self.stage1(self.stem(x)))
        return self.fc(self.dropout(x.mean(dim=(2, 3))))


def glyphs(count, classes=4, side=10):
    """Noisy glyphs: bar, post, slope, frame."""
    plans = torch.zeros(classes, side, side)
    plans[0, 4:6], plans[1, :, 4:6] = 1, 1
    plans[2].fill_diagonal_(1)
    plans[3, 0], plans[3, -1], plans[3, :, 0], plans[3, :, -1] = 1, 1, 1, 1
    labels = torch.randint(0, classes, (count,))
    return TensorDataset((plans[labels] + 1.3 * torch.randn(count, side, side)).unsqueeze(1), labels)


class Project:
    def __init__(self, options, folder):
        self.options = options
        train, valid = random_split(glyphs(options.samples), [0.8, 0.2])
        self.train_loader = DataLoader(train, options.batch_size, shuffle=True, drop_last=True)
        self.valid_loader = DataLoader(valid, 128)
        self.model = Classifier(options.width, 4, options.dropout)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr, weight_decay=0.01)
        updates = options.epochs * len(self.train_loader)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, options.lr, total_steps=updates)
        self.best, self.path = 0.0, Path(folder, "best.pt")

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        right = sum(int((self.model(x).argmax(1) == y).sum()) for x, y in self.valid_loader)
        accuracy = right / len(self.valid_loader.dataset)
        if accuracy <= self.best:
            return accuracy
        self.best = accuracy
        torch.save({"model": self.model.state_dict(), "accuracy": accuracy}, self.path)
        self.model.train()
        return accuracy

    def train_epoch(self):
        total = 0.0
        for images, labels in self.train_loader:
            loss = F.cross_entropy(self.model(images), labels, label_smoothing=0.05)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            total += loss.item()
        return total / len(self.train_loader)

    def run(self):
        for epoch in range(self.options.epochs):
            began = time.time()
            loss, accuracy = self.train_epoch(), self.evaluate()
            mode = "train" if self.model.training else "eval"
            print(f"epoch {epoch} loss {loss:.4f} accuracy {accuracy:.3f} {time.time() - began:.1f}s mode {mode}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=800)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        Project(options, folder).run()
