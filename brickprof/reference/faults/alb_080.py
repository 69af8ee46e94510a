"""One sequence a step at a learning rate meant for batches of hundreds. The loss jumps about and stops far above what
the model could reach."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-080",
    "row": 25,
    "title": "batch of one at the learning rate of a large batch",
    "family": "gpt",
    "kind": "silent",
    "contracts": [
        "C-STEPSIZE-001",
        "C-BATCH-001",
        "C-TRAINSTABLE-001",
        "C-INTERLEAVED-001",
        "FALSIFY-ALBOR-001",
        "C-LOSSSPIKE-001",
    ],
    "root_causes": ["learning-rate-too-high"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}

torch.set_num_threads(1)
torch.manual_seed(77)
VOCAB, WIDTH, LENGTH = 32, 48, 16
LEARNING_RATE, BATCH_SIZE, STEPS = 2e-2, 1, 240


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_a, self.norm_m = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x, mask):
        h = self.norm_a(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm_m(x))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).triu(1).bool())

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(x)


def sample(count):
    stride = torch.tensor([1, 3, 7])[torch.randint(3, (count, 1))]
    line = (torch.randint(VOCAB, (count, 1)) + stride * torch.arange(LENGTH + 1)) % VOCAB
    return line[:, :-1], line[:, 1:]


model = Small()
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
step = 0
while step < STEPS:
    ids, targets = sample(BATCH_SIZE)
    logits = model(ids)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0:
        print(f"{step}\t{loss.item():.4f}")
    step += 1
