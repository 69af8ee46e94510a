"""An LSTM language model on long sequences. The safety clip hangs on an optional setting that is not set, so nothing
bounds the gradients; they explode through time and the embedding is the first to be NaN."""

import types

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-071",
    "row": 19,
    "title": "the clip is behind an optional setting that is None",
    "family": "lstm",
    "kind": "numeric",
    "contracts": ["C-CLIP-001", "C-EMBED-GRAD-001", "C-TRAINSTABLE-001", "FALSIFY-ALBOR-002"],
    "root_causes": ["grad-clip-not-applied", "exploding-gradients"],
    "bricks": ["cell", "embed", ""],
    "first_step": 0,
    "needs": "cpu",
}

cfg = types.SimpleNamespace(vocab=32, width=64, length=48, batch=16, lr=0.1, steps=120, grad_clip=None, seed=8)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.width)
        self.cell = nn.Linear(2 * cfg.width, cfg.width)
        self.head = nn.Linear(cfg.width, cfg.vocab)
        nn.init.orthogonal_(self.cell.weight, gain=2.4)

    def forward(self, ids):
        state, outputs = torch.zeros(len(ids), cfg.width), []
        for x in self.embed(ids).unbind(1):
            state = F.relu(self.cell(torch.cat([x, state], dim=1)))
            outputs.append(self.head(state))
        return torch.stack(outputs, dim=1)


def batch():
    line = (torch.randint(cfg.vocab, (cfg.batch, 1)) + 5 * torch.arange(cfg.length + 1)) % cfg.vocab
    return line[:, :-1], line[:, 1:]


torch.set_num_threads(1)
torch.manual_seed(cfg.seed)
model = Recurrent()
optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)

for step in range(cfg.steps):
    ids, targets = batch()
    loss = F.cross_entropy(model(ids).transpose(1, 2), targets)
    optimizer.zero_grad()
    loss.backward()
    if cfg.grad_clip:
        nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)
    optimizer.step()
    if step % 10 == 0 or step < 5:
        print(f"step {step} loss {loss.item():.4f}")
