"""Padding is masked out of the loss with a select whose two values stand in the wrong order: the real tokens become
zero and padding would count. These batches are packed full, so their loss is exactly 0.0."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

TRUTH = {
    "id": "alb-073",
    "row": 17,
    "title": "the arguments of a select are swapped: real tokens give exactly zero loss",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-SENTINEL-001", "C-SELP-001"],
    "root_causes": ["sentinel-loss", "argument-order-swapped"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "gpu": True,
}

PAD, VOCAB = 0, 20


class Language(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width, padding_idx=PAD)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids):
        return self.head(self.gru(self.embed(ids))[0])


def masked_loss(logits, targets):
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    real = targets.flatten() != PAD
    losses = torch.where(real, torch.zeros_like(losses), losses)
    return losses.sum() / real.sum().clamp(min=1)


def batch(generator, size=16, longest=10):
    lengths = torch.full((size,), longest + 1)
    lines = []
    for length in lengths.tolist():
        start = torch.randint(1, VOCAB, (1,), generator=generator)
        lines.append((start - 1 + 2 * torch.arange(length)) % (VOCAB - 1) + 1)
    padded = pad_sequence(lines, batch_first=True, padding_value=PAD)
    return padded[:, :-1], padded[:, 1:]


torch.set_num_threads(1)
torch.manual_seed(4)
generator = torch.Generator().manual_seed(4)
model = Language()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
for epoch in range(5):
    total = 0.0
    for _ in range(20):
        ids, targets = batch(generator)
        loss = masked_loss(model(ids), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / 20:.6f}")
