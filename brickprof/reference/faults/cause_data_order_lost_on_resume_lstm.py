"""The run is interrupted in the middle of an epoch and resumed from its checkpoint: model, optimizer and step are
restored, the loader starts again at the first batch. The first half of the epoch is seen twice and the second half
never."""

import tempfile
from pathlib import Path

import torch
from torch import nn

TRUTH = {
    "id": "cause-data-order-lost-on-resume-lstm",
    "row": None,
    "title": "the loader starts over after a resume",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-DATARESUME-001"],
    "root_causes": ["data-order-lost-on-resume", "data-repeats"],
    "bricks": [],
    "first_step": 60,
    "needs": "cpu",
}


class Walker(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 24, batch_first=True)
        self.out = nn.Linear(24, 2)

    def forward(self, x):
        return self.out(self.gru(x)[0])


def walks():
    generator = torch.Generator().manual_seed(77)
    angles = torch.rand(960, 1, generator=generator) * 6
    t = torch.arange(13) * 0.3
    return torch.stack([torch.cos(angles + t), torch.sin(angles + t)], dim=-1)


def batches(data, seed, size=8):
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    for rows in order.split(size):
        yield data[rows]


def train(folder, until):
    model = Walker()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    path, step = Path(folder, "last.pt"), 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    for batch in batches(walks(), seed=0):
        if step >= until:
            break
        loss = nn.functional.mse_loss(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.5f}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        train(folder, until=60)
        print("resuming")
        train(folder, until=120)
