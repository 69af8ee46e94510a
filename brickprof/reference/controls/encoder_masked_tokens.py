"""A transformer encoder fills in masked tokens: most targets are ignored, and some rows have no target at all."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "encoder-masked-tokens",
    "title": "masked tokens with ignore_index",
    "family": "gpt",
    "trap": "85 % of the targets are the ignored index -100",
    "needs": "cpu",
}
TOKENS, MASK, LENGTH = 20, 20, 16


class Filler(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(TOKENS + 1, width)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids) + self.place))


def make(size):
    """Rows that count up from anywhere: a masked token can be read from any other one."""
    ids = (torch.randint(0, TOKENS, (size, 1)) + torch.arange(LENGTH)) % TOKENS
    hidden = torch.rand(ids.shape) < 0.15
    return ids.masked_fill(hidden, MASK), ids.masked_fill(~hidden, -100)


torch.set_num_threads(1)
torch.manual_seed(0)
model = Filler()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=20)
for step in range(170):
    inputs, targets = make(48)
    logits = model(inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    warmup.step()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.3f}")
