import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-char-gpt",
    "row": None,
    "title": "parameters kept in bfloat16 with no fp32 master copy: most updates round away",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["bf16-precision-loss"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class GPTConfig:
    vocab: int = 48
    block: int = 24
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 48
    dtype: torch.dtype = torch.bfloat16


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_head = c.n_head
        self.qkv = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.proj = nn.Linear(c.n_embd, c.n_embd)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.n_head, d // self.n_head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(c.n_embd), Attention(c)
        self.ln2 = nn.LayerNorm(c.n_embd)
        self.mlp = nn.Sequential(nn.Linear(c.n_embd, 4 * c.n_embd), nn.GELU(), nn.Linear(4 * c.n_embd, c.n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c.vocab, c.n_embd)
        self.wpe = nn.Embedding(c.block, c.n_embd)
        self.h = nn.ModuleList([Block(c) for _ in range(c.n_layer)])
        self.ln_f = nn.LayerNorm(c.n_embd)
        self.lm_head = nn.Linear(c.n_embd, c.vocab, bias=False)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for blk in self.h:
            x = blk(x)
        logits = self.lm_head(self.ln_f(x)).float()
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def text(vocab, n, seed):
    g = torch.Generator().manual_seed(seed)
    rule = torch.randint(0, vocab, (vocab, 2), generator=torch.Generator().manual_seed(1))
    pick = (torch.rand(n, generator=g) < 0.15).long()
    out = [0]
    for k in range(n - 1):
        out.append(int(rule[out[-1], pick[k]]))
        if k % 97 == 0:
            out[-1] = int(torch.randint(0, vocab, (1,), generator=g))
    return torch.tensor(out)


def get_batch(data, c, bs):
    i = torch.randint(0, len(data) - c.block - 1, (bs,))
    x = torch.stack([data[k : k + c.block] for k in i])
    y = torch.stack([data[k + 1 : k + 1 + c.block] for k in i])
    return x, y


def main(steps=220, bs=16, peak=2e-4):
    torch.manual_seed(1337)
    c = GPTConfig()
    train_data, val_data = text(c.vocab, 30000, 2), text(c.vocab, 4000, 3)
    model = GPT(c).to(c.dtype)
    opt = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.0)
    warm = 20
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: (s + 1) / warm if s < warm else 0.2 + 0.4 * (1 + math.cos(math.pi * (s - warm) / (steps - warm)))
    )
    for step in range(steps):
        x, y = get_batch(train_data, c, bs)
        _, loss = model(x, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 50 == 0 or step == steps - 1:
            model.eval()
            with torch.no_grad():
                val = sum(model(*get_batch(val_data, c, bs))[1].item() for _ in range(5)) / 5
            model.train()
            print(f"step {step}: train {loss.item():.4f} val {val:.4f}")


if __name__ == "__main__":
    main()
