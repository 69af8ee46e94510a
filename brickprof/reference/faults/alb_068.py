"""The configuration asks for a checkpoint every 20 steps, and the field is parsed into the settings. Nothing ever reads
it: the run ends, or dies, without a file."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import yaml
from torch import nn

TRUTH = {
    "id": "alb-068",
    "row": 16,
    "title": "save_interval is parsed and never used",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-CONFIG-001", "C-TRAINCFG-001", "C-HYPERPARAMS-001"],
    "root_causes": ["config-unused"],
    "bricks": [],
    "first_step": 20,
    "needs": "cpu",
    "run": ["--config", "train.yaml"],
    "args": ["--config", "train.yaml"],
    "files": {
        "train.yaml": "batch_size: 32\nlr: 0.003\nmax_steps: 120\nsave_interval: 20\noutput_dir: checkpoints\nseed: 9\n"
    },
}


@dataclass
class Settings:
    batch_size: int = 32
    lr: float = 1e-3
    max_steps: int = 100
    save_interval: int = 1000
    output_dir: str = "out"
    seed: int = 0


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(24)
        self.fc = nn.Linear(24 * 9, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.flatten(1))


class Training:
    def __init__(self, settings):
        self.settings = settings
        torch.manual_seed(settings.seed)
        self.shapes = torch.randn(10, 1, 12, 12)
        self.net = Digits()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=settings.lr)
        self.step = 0

    def batch(self):
        label = torch.randint(10, (self.settings.batch_size,))
        return self.shapes[label] + 0.8 * torch.randn(len(label), 1, 12, 12), label

    def train(self):
        while self.step < self.settings.max_steps:
            image, label = self.batch()
            loss = F.cross_entropy(self.net(image), label)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if self.step % 20 == 0:
                print(f"[{self.step}/{self.settings.max_steps}] loss {loss.item():.4f}")

    def save(self):
        folder = Path(self.settings.output_dir)
        folder.mkdir(exist_ok=True)
        state = {"step": self.step, "net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / f"step_{self.step}.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    torch.set_num_threads(1)
    Training(Settings(**yaml.safe_load(parser.parse_args().config.read_text()))).train()
