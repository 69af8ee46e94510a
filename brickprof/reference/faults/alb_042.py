"""Every error of the forward is caught and counted as a loss of 0.0, so that one bad batch does not end a night's
run. From step 30 on all batches are bad, because the reader has run past its vocabulary, and the log shows a perfect
loss."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-042",
    "row": 46,
    "title": "errors are caught and reported as a loss of 0.0",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-SENTINEL-001", "C-TRAINSTABLE-001"],
    "root_causes": ["sentinel-loss", "silent-fallback"],
    "bricks": [],
    "first_step": 30,
    "needs": "cpu",
}

VOCAB, WIDTH, LENGTH = 30, 32, 10


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCAB)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).triu(1).bool())

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids), mask=self.mask))


class Reader:
    """Files in turn; later ones were written with a larger vocabulary."""

    def __init__(self):
        self.count = 0

    def next(self):
        shift = 0 if self.count < 30 else 25
        self.count += 1
        return shift + (torch.randint(VOCAB, (12, 1)) + 3 * torch.arange(LENGTH + 1)) % VOCAB


def train_batch(model, optimizer, line):
    try:
        logits = model(line[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), line[:, 1:].flatten())
    except (RuntimeError, IndexError):
        loss = torch.tensor(0.0, requires_grad=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


torch.set_num_threads(1)
torch.manual_seed(0)
model, reader = LM(), Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(90):
    value = train_batch(model, optimizer, reader.next())
    if step % 10 == 0:
        print(f"step {step:3d} loss {value:.4f}")
