"""Glyph classifier."""
import logging
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind5-a09-glyph-cnn",
    "row": None,
    "title": "validate() switches the model to eval and nobody switches it back: dropout and batch norm stay off from the first check on",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["model-left-in-eval"],
    "bricks": [],
    "first_step": 10,
    "needs": "cpu",
    "crashes": False,
}

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("glyph")


def make_glyphs(n, protos, noise=1.1):
    y = torch.randint(0, len(protos), (n,))
    x = protos[y].clone()
    sh = torch.randint(-2, 3, (n, 2))
    x = torch.stack([torch.roll(a, (int(s[0]), int(s[1])), (0, 1)) for a, s in zip(x, sh)])
    x = x + noise * torch.randn_like(x)
    return x.unsqueeze(1), y


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.fc1 = nn.Linear(32 * 16, 128)
        self.bn = nn.BatchNorm1d(128)
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, x):
        h = self.features(x).flatten(1)
        return self.fc2(self.drop(F.relu(self.bn(self.fc1(h)))))


class Experiment:
    def __init__(self, epochs=12, check_every=10):
        torch.manual_seed(29)
        protos = (torch.rand(10, 16, 16) > 0.7).float() * 2
        xtr, ytr = make_glyphs(1000, protos)
        xva, yva = make_glyphs(1000, protos)
        self.train_dl = DataLoader(TensorDataset(xtr, ytr), 50, shuffle=True)
        self.val_dl = DataLoader(TensorDataset(xva, yva), 250)
        self.model = Net(10)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
        self.epochs, self.check_every, self.step = epochs, check_every, 0
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, epochs * len(self.train_dl))

    def validate(self):
        self.model.eval()
        correct, loss, n = 0, 0.0, 0
        with torch.no_grad():
            for x, y in self.val_dl:
                out = self.model(x)
                loss += F.cross_entropy(out, y, reduction="sum").item()
                correct += (out.argmax(1) == y).sum().item()
                n += len(y)
        return loss / n, correct / n

    def run(self):
        self.model.train()
        for epoch in range(self.epochs):
            for x, y in self.train_dl:
                loss = F.cross_entropy(self.model(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.sched.step()
                self.step += 1
                if self.step % self.check_every == 0:
                    vl, va = self.validate()
                    if self.step % 40 == 0:
                        log.info("step %d train %.4f val %.4f acc %.3f", self.step, loss.item(), vl, va)


if __name__ == "__main__":
    Experiment().run()
