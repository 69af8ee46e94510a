import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-markov-gpt",
    "row": None,
    "title": "init function covers nn.Linear only; the tied token embedding keeps N(0,1), so the first logits are huge",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["bad-initialisation"],
    "bricks": ["wte"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class GPTConfig:
    vocab_size: int = 64
    block_size: int = 48
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 80
    batch_size: int = 16
    max_iters: int = 200
    warmup_iters: int = 20
    lr: float = 2e-3
    weight_decay: float = 0.05
    grad_clip: float = 1.0


class CausalSelfAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.n_head = cfg.n_head
        self.c_attn = nn.Linear(cfg.n_embd, 3 * cfg.n_embd)
        self.c_proj = nn.Linear(cfg.n_embd, cfg.n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln_1 = nn.LayerNorm(cfg.n_embd)
        self.attn = CausalSelfAttention(cfg)
        self.ln_2 = nn.LayerNorm(cfg.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.n_embd, 4 * cfg.n_embd), nn.GELU(), nn.Linear(4 * cfg.n_embd, cfg.n_embd)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.wte = nn.Embedding(cfg.vocab_size, cfg.n_embd)
        self.wpe = nn.Parameter(torch.randn(cfg.block_size, cfg.n_embd) * 0.02)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layer))
        self.ln_f = nn.LayerNorm(cfg.n_embd)
        self.lm_head = nn.Linear(cfg.n_embd, cfg.vocab_size, bias=False)
        self.apply(self._init_weights)
        self.lm_head.weight = self.wte.weight

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe[: idx.size(1)]
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def make_corpus(n, vocab, seed):
    """Order-2 chain: the next token depends on the last two."""
    g = torch.Generator().manual_seed(5)
    table = torch.randint(0, vocab, (vocab, 4, 3), generator=g)
    g = torch.Generator().manual_seed(seed)
    pick = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), n, replacement=True, generator=g).tolist()
    table = table.tolist()
    out = [1, 2]
    for i in range(n - 2):
        out.append(table[out[-1]][out[-2] % 4][pick[i]])
    return torch.tensor(out)


def get_batch(data, cfg):
    ix = torch.randint(len(data) - cfg.block_size - 1, (cfg.batch_size,))
    x = torch.stack([data[i : i + cfg.block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + cfg.block_size] for i in ix])
    return x, y


def lr_at(it, cfg):
    if it < cfg.warmup_iters:
        return cfg.lr * (it + 1) / cfg.warmup_iters
    p = (it - cfg.warmup_iters) / (cfg.max_iters - cfg.warmup_iters)
    return cfg.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * p)))


@torch.no_grad()
def val_loss(model, data, cfg, iters=5):
    model.eval()
    out = sum(model(*get_batch(data, cfg))[1].item() for _ in range(iters)) / iters
    model.train()
    return out


if __name__ == "__main__":
    torch.manual_seed(1337)
    cfg = GPTConfig()
    train_data, val_data = make_corpus(60000, cfg.vocab_size, 1), make_corpus(6000, cfg.vocab_size, 2)
    model = GPT(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), weight_decay=cfg.weight_decay)
    for it in range(cfg.max_iters):
        for group in opt.param_groups:
            group["lr"] = lr_at(it, cfg)
        x, y = get_batch(train_data, cfg)
        _, loss = model(x, y)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)
        opt.step()
        if it % 40 == 0 or it == cfg.max_iters - 1:
            print(f"iter {it}: train {loss.item():.3f} val {val_loss(model, val_data, cfg):.3f}")
