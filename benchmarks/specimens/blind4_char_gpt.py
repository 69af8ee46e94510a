import math
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-char_gpt",
    "title": "Padding the vocabulary replaces the token embedding and the output projection by two separate tensors with equal values, so the declared weight tying is lost and they drift apart.",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["weight-tying-broken"],
    "bricks": ["lm_head", "tok"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ln1, self.ln2, self.h = nn.LayerNorm(d), nn.LayerNorm(d), h
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(y)
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tok = nn.Embedding(cfg["vocab"], cfg["d"])
        self.pos = nn.Embedding(cfg["ctx"], cfg["d"])
        self.blocks = nn.ModuleList(Block(cfg["d"], cfg["heads"]) for _ in range(cfg["layers"]))
        self.ln_f = nn.LayerNorm(cfg["d"])
        self.lm_head = nn.Linear(cfg["d"], cfg["vocab"], bias=False)
        self.apply(self._init)
        if cfg["tie_embeddings"]:
            self.lm_head.weight = self.tok.weight

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
            if getattr(m, "bias", None) is not None:
                nn.init.zeros_(m.bias)

    def pad_vocab(self, multiple):
        """Round the table size up for friendlier matmul shapes."""
        old = self.tok.weight.data
        size = math.ceil(old.shape[0] / multiple) * multiple
        table = torch.cat([old, 0.02 * torch.randn(size - old.shape[0], old.shape[1])])
        self.tok = nn.Embedding.from_pretrained(table.clone(), freeze=False)
        self.lm_head = nn.Linear(old.shape[1], size, bias=False)
        self.lm_head.weight.data.copy_(table)
        self.cfg["vocab"] = size
        return self

    def forward(self, ids, targets):
        x = self.tok(ids) + self.pos.weight[:ids.shape[1]]
        for b in self.blocks:
            x = b(x)
        return F.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1), targets.flatten())


def stream(n, vocab, seed):
    rng = np.random.default_rng(seed)
    trans = np.random.default_rng(0).dirichlet(np.full(vocab, 0.05), size=(vocab,)).cumsum(1)
    out, cur = np.empty(n, np.int64), 0
    for i in range(n):
        cur = min(int(np.searchsorted(trans[cur], rng.random())), vocab - 1)
        out[i] = cur
    return torch.from_numpy(out)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=130)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=3e-3)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cfg = {"vocab": 61, "d": 48, "heads": 4, "layers": 2, "ctx": 32, "tie_embeddings": True}
    data = stream(20000, cfg["vocab"], 1)
    model = GPT(cfg).pad_vocab(16)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.1)
    g = torch.Generator().manual_seed(0)
    for step in range(a.steps):
        for grp in opt.param_groups:
            grp["lr"] = a.lr * min(1, (step + 1) / 15) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / a.steps)))
        i = torch.randint(0, len(data) - cfg["ctx"] - 1, (a.batch,), generator=g)
        x = torch.stack([data[j:j + cfg["ctx"] + 1] for j in i])
        loss = model(x[:, :-1], x[:, 1:])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 10 == 0:
            gap = (model.tok.weight - model.lm_head.weight).norm() / model.tok.weight.norm()
            print(f"step {step} loss {loss.item():.4f} in/out table gap {gap.item():.3f}")


if __name__ == "__main__":
    main()
