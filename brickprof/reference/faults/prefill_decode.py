"""A small policy writes lines with a cache, token by token, and is then trained on them with whole lines at once. In
bf16 the two paths add up in a different order, so the ratio of new to old probability is not one at the first
update."""

import math

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "prefill-decode",
    "row": 63,
    "title": "decoding with a cache and the full pass disagree in bf16",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-PRECISION-001", "DIM-001"],
    "root_causes": ["bf16-precision-loss"],
    "bricks": ["blocks.0.attention", "blocks.1.attention", "blocks.0", "blocks.1", ""],
    "first_step": 0,
    "needs": "cpu",
}

VOCAB, WIDTH, HEADS, LENGTH, BATCH = 16, 64, 4, 12, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, cache=None):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            cache.append((k, v))
            k, v = (torch.cat(parts, dim=2) for parts in zip(*cache, strict=True))
            y = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x, cache=None):
        x = x + self.attention(self.norm1(x), cache)
        return x + self.mlp(self.norm2(x))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids, caches=(None, None)):
        x = self.embed(ids)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)
        return self.head(x).log_softmax(-1)


@torch.no_grad()
def sample(policy):
    token, caches = torch.zeros(BATCH, 1, dtype=torch.long), ([], [])
    line, logps = [token], []
    for _ in range(LENGTH):
        logp = policy(token, caches)[:, -1]
        token = torch.distributions.Categorical(logits=logp.float()).sample()[:, None]
        logps.append(logp.gather(1, token))
        line.append(token)
    return torch.cat(line, 1), torch.cat(logps, 1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = Policy().bfloat16()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    for step in range(60):
        line, old = sample(policy)
        reward = (line[:, 1:] == (line[:, :-1] + 1) % VOCAB).float()
        advantage = reward - reward.mean()
        new = policy(line[:, :-1]).gather(2, line[:, 1:, None]).squeeze(2)
        ratio = (new - old).float().exp()
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            drift = (ratio - 1).abs().max().item()
            print(f"step {step} reward {reward.mean().item():.3f} largest |ratio - 1| {drift:.4f}")


if __name__ == "__main__":
    main()
