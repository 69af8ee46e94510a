"""Fine-tuning starts from a pretrained checkpoint and takes over its step counter with the weights. The counter is
past max_steps already, so the loop body never runs and the "fine-tuned" model is saved unchanged."""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

TRUTH = {
    "id": "cause-resume-step-leaked-cnn",
    "row": None,
    "title": "the pretraining step counter ends fine-tuning at once",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-FRESH-TRAIN-001", "C-RESUME-001"],
    "root_causes": ["resume-step-leaked"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "args": ["--max-steps", "120"],
}


def build():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))


def pretrained(folder):
    """What another project left: weights, and where its training had come to."""
    path = Path(folder, "pretrained.pt")
    torch.save({"model": build().state_dict(), "step": 14500, "epoch": 9}, path)
    return path


def batch(size=32):
    labels = torch.randint(0, 4, (size,))
    images = 0.4 * torch.randn(size, 1, 8, 8)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = divmod(label, 2)
        image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 1
    return images, labels


def finetune(checkpoint, max_steps, out):
    state = torch.load(checkpoint)
    model = build()
    model.load_state_dict(state["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step, loss = state["step"], torch.zeros(())
    while step < max_steps:
        images, labels = batch()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    torch.save({"model": model.state_dict(), "step": step}, out)
    print(f"done at step {step}, loss {loss.item():.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        finetune(pretrained(folder), args.max_steps, Path(folder, "finetuned.pt"))
