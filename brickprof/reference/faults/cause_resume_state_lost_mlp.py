"""The checkpoint is complete and is loaded, but the optimizer is built anew right after its state was restored.
Momentum and the step count are gone, the scheduler's rate too: training goes on as if it began."""

import tempfile
from pathlib import Path

import torch
from torch import nn

TRUTH = {
    "id": "cause-resume-state-lost-mlp",
    "row": None,
    "title": "the optimizer is rebuilt after loading its state",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-RESUME-001", "C-GPUOPT-001"],
    "root_causes": ["resume-state-lost", "checkpoint-incomplete"],
    "bricks": [],
    "first_step": 150,
    "needs": "cpu",
}


def build():
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    return model, optimizer, scheduler


def save(path, step, *parts):
    torch.save({"step": step, "states": [part.state_dict() for part in parts]}, path)


def load(path):
    checkpoint = torch.load(path)
    model, optimizer, scheduler = build()
    for part, state in zip((model, optimizer, scheduler), checkpoint["states"], strict=True):
        part.load_state_dict(state)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    return checkpoint["step"], model, optimizer, scheduler


def train(start, steps, model, optimizer, scheduler):
    for step in range(start, start + steps):
        x = torch.randn(64, 8)
        loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2] + x[:, 2:3].abs())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state.pt")
        parts = build()
        train(0, 150, *parts)
        save(path, 150, *parts)
        step, *parts = load(path)
        train(step, 100, *parts)


if __name__ == "__main__":
    main()
