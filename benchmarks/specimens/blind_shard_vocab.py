import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-shard-vocab",
    "row": None,
    "title": "the character vocabulary is rebuilt for each shard; one shard has an extra symbol, so all its ids are shifted and the loss spikes there",
    "family": "gpt",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["loss-spike-data"],
    "bricks": [],
    "first_step": 190,
    "needs": "cpu",
    "crashes": False,
}

torch.manual_seed(11)
torch.set_num_threads(1)

VOCAB_SIZE, BLOCK, BATCH = 40, 48, 16
STEPS_PER_SHARD, SHARDS = 5, 60
LETTERS = "abcdefghijklmnopqrstuvwxyz"

_r = random.Random(3)
LEXICON = ["".join(_r.choice(LETTERS) for _ in range(_r.randint(3, 7))) for _ in range(60)]
FOLLOW = {w: _r.sample(LEXICON, 8) for w in LEXICON}


def read_shard(n):
    r = random.Random(1000 + n)
    out, w = [], r.choice(LEXICON)
    while sum(map(len, out)) < STEPS_PER_SHARD * BATCH * (BLOCK + 1):
        w = r.choice(FOLLOW[w]) if r.random() < 0.9 else r.choice(LEXICON)
        out.append(w)
    text = " ".join(out)
    if n == 38:
        text = "# copied from the second mirror " + text
    return text


def encode(text):
    stoi = {c: i for i, c in enumerate(sorted(set(text)))}
    return torch.tensor([stoi[c] for c in text])


def shard_batches(n):
    ids = encode(read_shard(n))
    usable = (len(ids) // (BLOCK + 1)) * (BLOCK + 1)
    rows = ids[:usable].view(-1, BLOCK + 1)
    order = torch.randperm(len(rows))
    for i in range(STEPS_PER_SHARD):
        yield rows[order[i * BATCH : (i + 1) * BATCH]]


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class CharGPT(nn.Module):
    def __init__(self, d=64, layers=2, heads=4):
        super().__init__()
        self.tok = nn.Embedding(VOCAB_SIZE, d)
        self.pos = nn.Embedding(BLOCK, d)
        self.blocks = nn.ModuleList([Block(d, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB_SIZE, bias=False)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.size(1)]
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.ln(x))


def main():
    model = CharGPT()
    total = SHARDS * STEPS_PER_SHARD
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / 20) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * s / total)))
    )
    step = 0
    for n in range(SHARDS):
        for rows in shard_batches(n):
            logits = model(rows[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, VOCAB_SIZE), rows[:, 1:].reshape(-1))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            if step % 10 == 0 or 185 <= step < 200:
                print(f"step {step:4d} shard {n:2d} loss {loss.item():.3f}")
            step += 1
    print(f"final loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
