"""A small GPT is clipped at norm 0.1, but the call stands after optimizer.step(): every update uses the raw gradient.
Plain SGD with a large rate then swings far beyond what the clip was meant to allow."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-grad-clip-after-step-gpt",
    "row": None,
    "title": "clip_grad_norm_ is called after the update",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-CLIP-001", "C-TRAINSTABLE-001"],
    "root_causes": ["grad-clip-not-applied", "grad-clip-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}

VOCAB, WIDTH, LENGTH = 32, 48, 24


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def counting(batch):
    start = torch.randint(0, VOCAB, (batch, 1))
    stride = torch.randint(1, 5, (batch, 1))
    return (start + stride * torch.arange(LENGTH + 1)) % VOCAB


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    for step in range(120):
        ids = counting(16)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if step % 10 == 0:
            print(f"{step:4d} loss {loss.item():.3f} norm {norm:.2f}")


if __name__ == "__main__":
    main()
