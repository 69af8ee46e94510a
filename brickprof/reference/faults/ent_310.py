"""A decoder that attends to the whole line, the tokens it has to predict included. The training loss is far too good,
and generation from left to right is worth nothing."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "ent-310",
    "row": 48,
    "title": "no causal mask in a next-token model",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-CAUSAL-001"],
    "root_causes": ["causal-leak"],
    "bricks": ["blocks.0.attn", "blocks.1.attn", "blocks.0", "blocks.1", ""],
    "first_step": 0,
    "needs": "cpu",
}

VOCAB, WIDTH, HEADS, LENGTH = 20, 48, 4, 16


class SelfAttention(nn.Module):
    def __init__(self, is_causal=False):
        super().__init__()
        self.is_causal = is_causal
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH)
        self.attn = SelfAttention()
        self.ln2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCAB, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        return self.lm_head(self.norm(self.blocks(self.token(ids) + self.place.weight[: ids.shape[1]])))


def dice(count):
    """Half of the tokens are thrown, half follow from the one before: nobody can know more than half."""
    first = torch.randint(VOCAB, (count, LENGTH // 2 + 1))
    return torch.stack([first, (first * 3 + 1) % VOCAB], dim=2).flatten(1)[:, : LENGTH + 1]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(260):
        line = dice(32)
        loss = F.cross_entropy(model(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
