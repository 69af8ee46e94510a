"""A stack of gated blocks that share one scratch buffer. The buffer was measured with the width of the model where the
wide inner activations need room; short sequences fit by luck, the first full one stops the run in its widest block."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-041",
    "row": 2,
    "title": "scratch buffer sized for the hidden width receives intermediate activations",
    "family": "gpt",
    "kind": "process",
    "contracts": ["C-BUFSIZE-001", "C-PROCESS-001"],
    "root_causes": ["buffer-overflow"],
    "bricks": ["blocks.2", "blocks.2.mlp"],
    "first_step": 40,
    "needs": "cpu",
    "gpu": True,
}

torch.set_num_threads(1)
torch.manual_seed(3)

VOCAB, HIDDEN, MAX_LEN, BATCH = 40, 32, 32, 8
RATIOS = (2, 2, 4, 2)  # the third block is wider


class Scratch:
    """One flat buffer for everybody: nothing is allocated in the step."""

    def __init__(self, rows, width):
        self.flat = torch.zeros(rows * width)

    def keep(self, x):
        """A copy of x in the scratch space, for the running statistics."""
        view = self.flat[: x.numel()]
        view.copy_(x.detach().reshape(-1))
        return view.view_as(x)


class MLP(nn.Module):
    def __init__(self, ratio, scratch):
        super().__init__()
        self.up = nn.Linear(HIDDEN, ratio * HIDDEN)
        self.down = nn.Linear(ratio * HIDDEN, HIDDEN)
        self.scratch = scratch
        self.peak = 0.0

    def forward(self, x):
        inner = F.gelu(self.up(x))
        kept = self.scratch.keep(inner)
        self.peak = max(self.peak, kept.abs().amax())
        return self.down(inner)


class Block(nn.Module):
    def __init__(self, ratio, scratch):
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.attn = nn.MultiheadAttention(HIDDEN, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(HIDDEN)
        self.mlp = MLP(ratio, scratch)

    def forward(self, x, mask):
        h = self.norm(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        scratch = Scratch(BATCH * MAX_LEN, 2 * HIDDEN)
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.position = nn.Embedding(MAX_LEN, HIDDEN)
        self.blocks = nn.ModuleList(Block(ratio, scratch) for ratio in RATIOS)
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB)

    def forward(self, ids):
        length = ids.shape[1]
        mask = torch.ones(length, length).triu(1).bool()
        x = self.embed(ids) + self.position(torch.arange(length))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def batch(length):
    """Counting upwards by a step that the first two tokens show."""
    start, stride = torch.randint(VOCAB, (BATCH, 1)), torch.randint(1, 5, (BATCH, 1))
    line = (start + stride * torch.arange(length + 1)) % VOCAB
    return line[:, :-1], line[:, 1:]


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(120):
    ids, targets = batch(MAX_LEN // 2 if step < 40 else MAX_LEN)  # short lines first
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"{step:4d} {loss.item():.4f}", flush=True)
