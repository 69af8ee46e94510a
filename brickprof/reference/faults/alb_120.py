"""A run over shards that is resumed in the middle. Weights, moments and step come back, but a new iterator begins at
the first shard again, so the first half of the data is seen twice and the second half never."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-120",
    "row": 36,
    "title": "after the resume the data begin again at the first shard",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-DATARESUME-001"],
    "root_causes": ["data-order-lost-on-resume", "data-repeats"],
    "bricks": [],
    "first_step": 72,
    "needs": "cpu",
}

VOCAB, LENGTH, BATCH = 40, 12, 12
SHARDS, PER_SHARD = 8, 18


class Model(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.rnn = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def shard(number):
    generator = torch.Generator().manual_seed(number)
    start = torch.randint(VOCAB, (PER_SHARD, BATCH, 1), generator=generator)
    stride = torch.randint(1, 6, (PER_SHARD, BATCH, 1), generator=generator)
    return (start + stride * torch.arange(LENGTH + 1)) % VOCAB


def batches():
    order = torch.randperm(SHARDS, generator=torch.Generator().manual_seed(0))
    for number in order.tolist():
        yield from shard(number)


class Trainer:
    def __init__(self, folder):
        torch.manual_seed(2)
        self.file = os.path.join(folder, "state.pt")
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.step = 0
        self.data = batches()

    def save(self):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        torch.save(state, self.file)

    def resume(self):
        state = torch.load(self.file, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        self.data = batches()

    def run(self, until):
        while self.step < until:
            lines = next(self.data)
            loss = F.cross_entropy(self.model(lines[:, :-1]).flatten(0, 1), lines[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if self.step % 12 == 0:
                print(f"step {self.step:4d} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    total = SHARDS * PER_SHARD
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(folder)
        trainer.run(total // 2)
        trainer.save()
        trainer = Trainer(folder)
        trainer.resume()
        trainer.run(total)
