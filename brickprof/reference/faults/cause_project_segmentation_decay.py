"""A small U-Net that finds discs in noise, with a dice score, checkpoints and a presets table. The preset "strong"
gives SGD a weight decay of 1.0 for a rate of 0.1: a tenth of every weight goes with each update, and the network
fades away."""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-project-segmentation-decay",
    "row": None,
    "title": "weight decay of 1.0 in a preset",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-HYPERPARAMS-001", "FALSIFY-ALBOR-001", "C-LEARN-001"],
    "root_causes": ["weight-decay-too-strong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "args": ["--preset", "strong"],
}

PRESETS = {
    "plain": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0},
    "light": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
    "strong": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1.0},
}


def double(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()
    )


class UNet(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.down1, self.down2 = double(1, width), double(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join = double(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        return self.out(self.join(torch.cat([first, self.up(second)], dim=1)))


def discs(count, side=16):
    grid = torch.arange(side)
    centres = 4 + 8 * torch.rand(count, 2)
    radius = 2.5 + 2 * torch.rand(count, 1, 1)
    rows, columns = (grid - centres[:, :1]) ** 2, (grid - centres[:, 1:]) ** 2
    masks = (rows[:, :, None] + columns[:, None, :] < radius**2).float().unsqueeze(1)
    return 1.5 * masks + 0.5 * torch.randn_like(masks), masks


def dice(logits, masks):
    found = (logits > 0).float()
    return (2 * (found * masks).sum() / (found.sum() + masks.sum()).clamp(min=1)).item()


class Trainer:
    def __init__(self, preset, folder):
        self.model = UNet()
        self.optimizer = torch.optim.SGD(self.model.parameters(), **PRESETS[preset])
        self.folder = Path(folder)
        self.held_out = discs(40)

    def step(self):
        images, masks = discs(8)
        loss = F.binary_cross_entropy_with_logits(self.model(images), masks)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        score = dice(self.model(self.held_out[0]), self.held_out[1])
        self.model.train()
        return score

    def run(self, steps, every):
        for step in range(steps):
            loss = self.step()
            if step % every == 0:
                size = sum(p.pow(2).sum() for p in self.model.parameters()).sqrt().item()
                print(f"step {step} loss {loss:.4f} dice {self.evaluate():.3f} |w| {size:.3f}")
                torch.save(self.model.state_dict(), self.folder / f"step-{step}.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", choices=PRESETS, default="light")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--every", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(args.preset, folder).run(args.steps, args.every)
