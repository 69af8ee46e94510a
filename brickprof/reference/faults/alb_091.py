"""Gradients of the micro-batches are summed on the host: after every backward all of them are copied from the device,
and back again for the update. With accumulation the copies take most of the time."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-091",
    "row": 26,
    "title": "gradient accumulation on the host",
    "family": "gpt",
    "kind": "performance",
    "contracts": ["C-GPUACCUM-001", "C-GPUTRAIN-002"],
    "root_causes": ["extra-transfers"],
    "bricks": [],
    "first_step": 0,
    "needs": "gpu",
}

if not torch.cuda.is_available():
    print("this script needs a CUDA device; nothing was done")
    sys.exit(0)

VOCAB, WIDTH, LENGTH, MICRO = 512, 512, 64, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 6, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCAB)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).triu(1).bool())

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids), mask=self.mask))


class HostAccumulator:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.sums = [torch.zeros(p.shape) for p in self.parameters]

    def add(self):
        for total, p in zip(self.sums, self.parameters, strict=True):
            total += p.grad.cpu()
            p.grad = None

    def give_back(self):
        for total, p in zip(self.sums, self.parameters, strict=True):
            p.grad = total.to(p.device)
            total.zero_()


torch.manual_seed(0)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
accumulator = HostAccumulator(model.parameters())
for step in range(40):
    for _ in range(MICRO):
        line = (torch.randint(VOCAB, (16, 1)) + 3 * torch.arange(LENGTH + 1)) % VOCAB
        line = line.cuda()
        loss = F.cross_entropy(model(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())
        (loss / MICRO).backward()
        accumulator.add()
    accumulator.give_back()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")
