"""Next-item language model whose vocabulary is extended before training."""
import math
import os
from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-vocab-growth",
    "row": 30,
    "title": "growing the vocabulary rebuilds embedding and head as two copies although tie_embeddings is set; the export keeps one of them",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["weight-tying-broken"],
    "bricks": ["wte", "lm_head"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class ModelConfig:
    vocab_size: int = 76
    n_embd: int = 48
    n_head: int = 4
    n_layer: int = 2
    block_size: int = 24
    tie_embeddings: bool = True


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(c.n_embd), nn.LayerNorm(c.n_embd)
        self.attn = nn.MultiheadAttention(c.n_embd, c.n_head, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(c.n_embd, 4 * c.n_embd), nn.GELU(), nn.Linear(4 * c.n_embd, c.n_embd))

    def forward(self, x, mask):
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.wpe = nn.Embedding(c.block_size, c.n_embd)
        self.h = nn.ModuleList([Layer(c) for _ in range(c.n_layer)])
        self.ln_f = nn.LayerNorm(c.n_embd)
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        nn.init.normal_(self.wte.weight, std=0.1)
        if c.tie_embeddings:
            self.lm_head.weight = self.wte.weight

    @torch.no_grad()
    def resize_token_embeddings(self, n):
        old = self.wte.weight
        d = self.config.n_embd
        wte, head = nn.Embedding(n, d), nn.Linear(d, n, bias=False)
        nn.init.normal_(wte.weight, std=0.1)
        wte.weight[: len(old)] = old
        head.weight.copy_(wte.weight)
        self.wte, self.lm_head = wte, head
        self.config.vocab_size = n

    def forward(self, idx):
        t = idx.shape[1]
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        x = self.wte(idx) + self.wpe.weight[:t]
        for layer in self.h:
            x = layer(x, mask)
        return self.lm_head(self.ln_f(x))


def sessions(n, vocab, length, g):
    """Users walk from shelf to shelf; on each shelf they take any of its items."""
    shelves = 20
    first = torch.randint(0, shelves, (n, 1), generator=g)
    jump = (torch.rand(n, length + 1, generator=g) < 0.1) * torch.randint(0, shelves, (n, length + 1), generator=g)
    shelf = (first + torch.arange(length + 1) + jump.cumsum(1)) % shelves
    return shelf + shelves * torch.randint(0, vocab // shelves, (n, length + 1), generator=g)


def get_lr(it, total, peak, warm):
    if it < warm:
        return peak * (it + 1) / warm
    return 0.1 * peak + 0.45 * peak * (1 + math.cos(math.pi * (it - warm) / (total - warm)))


def export(model, path):
    state = model.state_dict()
    if model.config.tie_embeddings:
        state.pop("lm_head.weight")              # shared with wte
    torch.save({"config": vars(model.config), "state": state}, path)


def load(path):
    blob = torch.load(path)
    model = GPT(ModelConfig(**blob["config"]))
    model.load_state_dict(blob["state"], strict=False)
    return model.eval()


def main():
    torch.manual_seed(1)
    g = torch.Generator().manual_seed(2)
    model = GPT(ModelConfig())
    model.resize_token_embeddings(80)
    print("parameters", sum(p.numel() for p in model.parameters()))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
    data = sessions(4000, 80, 24, g)
    val = sessions(256, 80, 24, g)
    total, bs = 240, 32
    for it in range(total):
        for group in opt.param_groups:
            group["lr"] = get_lr(it, total, 3e-3, 20)
        seq = data[torch.randint(0, len(data), (bs,), generator=g)]
        logits = model(seq[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 80), seq[:, 1:].reshape(-1))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if (it + 1) % 20 == 0:
            model.eval()
            with torch.no_grad():
                v = F.cross_entropy(model(val[:, :-1]).reshape(-1, 80), val[:, 1:].reshape(-1)).item()
            model.train()
            print(f"iter {it + 1}: loss {loss.item():.3f} val {v:.3f}")
    export(model, "vocab_growth.pt")
    served = load("vocab_growth.pt")
    with torch.no_grad():
        v = F.cross_entropy(served(val[:, :-1]).reshape(-1, 80), val[:, 1:].reshape(-1)).item()
    print(f"served model: val {v:.3f}")
    os.remove("vocab_growth.pt")


if __name__ == "__main__":
    main()
