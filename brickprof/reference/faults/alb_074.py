"""Training cuts its lines to the longest that the model can read, validation does not. Everything is fine until the
first validation meets a long line, and the position table is read beyond its end."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "alb-074",
    "row": 21,
    "title": "validation does not cut to the maximum length: index out of range",
    "family": "gpt",
    "kind": "process",
    "contracts": ["C-EVALBUF-001", "C-BUFSIZE-001", "C-PROCESS-001"],
    "root_causes": ["out-of-bounds", "buffer-overflow"],
    "bricks": ["positions", ""],
    "first_step": 60,
    "needs": "cpu",
}

MAX_LEN, LETTERS = 20, 27


class Lines(Dataset):
    def __init__(self, count, lengths, seed, cut):
        draw = random.Random(seed)
        self.lines = []
        for _ in range(count):
            start, stride, length = draw.randrange(LETTERS), draw.choice((1, 2, 4)), draw.randint(*lengths)
            line = [(start + stride * i) % LETTERS for i in range(length + 1)]
            self.lines.append(line[: MAX_LEN + 1] if cut else line)

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return torch.tensor(self.lines[i])


def pad(lines):
    longest = max(len(line) for line in lines)
    ids = torch.full((len(lines), longest), -100)
    for i, line in enumerate(lines):
        ids[i, : len(line)] = line
    return ids[:, :-1].clamp(min=0), ids[:, 1:]


class Reader(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.tokens = nn.Embedding(LETTERS, width)
        self.positions = nn.Embedding(MAX_LEN, width)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, LETTERS)

    def forward(self, ids):
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.out(self.layers(x, mask=mask, is_causal=True))


def loss_of(model, batch):
    ids, targets = batch
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=-100)


def validate(model, loader):
    model.eval()
    with torch.no_grad():
        losses = [loss_of(model, batch).item() for batch in loader]
    model.train()
    return sum(losses) / len(losses)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train = DataLoader(Lines(1600, (8, 28), 1, cut=True), 16, shuffle=True, collate_fn=pad)
    valid = DataLoader(Lines(64, (8, 28), 2, cut=False), 16, collate_fn=pad)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, batch in enumerate(train):
        if step and step % 60 == 0:
            print(f"step {step} validation {validate(model, valid):.4f}", flush=True)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


main()
