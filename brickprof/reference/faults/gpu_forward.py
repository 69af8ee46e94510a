"""A recurrent tagger with preallocated buffers. They are sized by the first batch's length, and a batch of any other
length gets no output at all; the loop takes "no output" for a loss of zero."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "gpu-forward",
    "row": 6,
    "title": "buffers sized by the running length: other lengths return nothing, counted as loss 0",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-SENTINEL-001", "C-BUFSIZE-001"],
    "root_causes": ["sentinel-loss", "silent-fallback"],
    "bricks": [],
    "first_step": 6,
    "needs": "cpu",
    "gpu": True,
}

torch.set_num_threads(1)
torch.manual_seed(11)


class Tagger(nn.Module):
    """Says at each place whether the sum of the tokens so far is even."""

    def __init__(self, width=48, tokens=8):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 2)
        self.workspace = None

    def forward(self, ids):
        hidden, _ = self.lstm(self.embed(ids))
        if self.workspace is None:
            self.workspace = torch.zeros(hidden.shape)
        if self.workspace.shape != hidden.shape:
            return None
        self.workspace.copy_(hidden.detach())
        return self.head(hidden)


def make_batch(step, size=16):
    length = 12 if step < 6 or step % 9 == 0 else 8
    ids = torch.randint(8, (size, length))
    return ids, ids.cumsum(1) % 2


model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
history = []
for step in range(150):
    ids, tags = make_batch(step)
    out = model(ids)
    if out is None:
        loss = sum(p.sum() for p in model.parameters()) * 0.0
    else:
        loss = F.cross_entropy(out.flatten(0, 1), tags.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
    if step % 15 == 0:
        print(f"step {step} loss {loss.item():.4f}")
print(f"mean loss {sum(history) / len(history):.4f}")
