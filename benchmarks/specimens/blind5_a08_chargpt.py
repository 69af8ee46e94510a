# character-level GPT on generated text, nanoGPT style
import math
import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

TRUTH = {
    "id": "blind5-a08-chargpt",
    "row": None,
    "title": "get_batch reseeds its random generator on every call, so every step trains on the same batch",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["data-repeats"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
    "crashes": False,
}

# ---- config
seed = 1337
block_size = 48
batch_size = 16
n_layer, n_head, n_embd = 2, 4, 64
learning_rate, min_lr = 2e-3, 2e-4
warmup_iters, max_iters = 20, 300
eval_interval, eval_iters = 50, 6
torch.manual_seed(seed)

# ---- corpus
names = ["anna", "boris", "clara", "dmitri", "elena", "fritz"]
verbs = ["sees", "likes", "follows", "calls", "paints"]
things = ["the red house", "a small dog", "the old river", "his green hat", "a long train"]
_rng = np.random.default_rng(0)
text = " ".join(f"{_rng.choice(names)} {_rng.choice(verbs)} {_rng.choice(things)}." for _ in range(3000))
stoi = {c: i for i, c in enumerate(sorted(set(text)))}
data = np.array([stoi[c] for c in text], dtype=np.int64)
split = int(0.9 * len(data))
splits = {"train": data[:split], "val": data[split:]}


def get_batch(which):
    rng = np.random.default_rng(seed)
    src = splits[which]
    ix = rng.integers(0, len(src) - block_size - 1, batch_size)
    x = torch.stack([torch.from_numpy(src[i:i + block_size]) for i in ix])
    y = torch.stack([torch.from_numpy(src[i + 1:i + 1 + block_size]) for i in ix])
    return x, y


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in self.qkv(x).split(C, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, 0.0, 0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for b in self.h:
            x = b(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    r = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * r)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    out = {s: np.mean([model(*get_batch(s)).item() for _ in range(eval_iters)]) for s in splits}
    model.train()
    return out


model = GPT(len(stoi))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
for it in range(max_iters):
    for g in optimizer.param_groups:
        g["lr"] = get_lr(it)
    if it % eval_interval == 0 or it == max_iters - 1:
        l = estimate_loss(model)
        print(f"iter {it}: train {l['train']:.4f}, val {l['val']:.4f}")
    loss = model(*get_batch("train"))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
