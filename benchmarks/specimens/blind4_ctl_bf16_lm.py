import copy
import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-ctl_bf16_lm",
    "title": "A healthy tied transformer LM with bf16 autocast, normalised gradient accumulation, warm-up and cosine, clipping and an EMA copy.",
    "family": "gpt",
    "needs": "cpu",
    "trap": "Several backwards per step (losses are divided), bf16 activations, the first learning rate is tiny, the EMA copy gets no gradient, gradients are always clipped early on.",
}

CFG = dict(vocab=48, d=48, heads=4, layers=2, ctx=24, accum=3, micro=10, steps=110, lr=4e-3, warmup=12, clip=0.5, ema=0.95, seed=2)


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.a, self.m, self.h = nn.RMSNorm(d), nn.RMSNorm(d), h
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.gate, self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.a(x)).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        y = self.m(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.emb = nn.Embedding(c["vocab"], c["d"])
        self.pos = nn.Parameter(0.02 * torch.randn(c["ctx"], c["d"]))
        self.layers = nn.ModuleList(Layer(c["d"], c["heads"]) for _ in range(c["layers"]))
        self.norm = nn.RMSNorm(c["d"])
        self.head = nn.Linear(c["d"], c["vocab"], bias=False)
        nn.init.normal_(self.emb.weight, std=0.05)
        self.head.weight = self.emb.weight

    def forward(self, x):
        h = self.emb(x) + self.pos
        for l in self.layers:
            h = l(h)
        return self.head(self.norm(h))


def tokens(n, v, seed):
    rng = np.random.default_rng(seed)
    nxt = np.random.default_rng(9).integers(0, v, size=(v, 2))
    out, c = np.empty(n, np.int64), 0
    for i in range(n):
        c = int(nxt[c, 0 if rng.random() < 0.8 else 1]) if rng.random() < 0.95 else int(rng.integers(0, v))
        out[i] = c
    return torch.from_numpy(out)


def main():
    c = CFG
    torch.set_num_threads(1)
    torch.manual_seed(c["seed"])
    data, held = tokens(20000, c["vocab"], 0), tokens(2000, c["vocab"], 1)
    model = LM(c)
    ema = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], betas=(0.9, 0.95), weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: (s + 1) / c["warmup"] if s < c["warmup"] else 0.1 + 0.45 * (1 + math.cos(math.pi * (s - c["warmup"]) / (c["steps"] - c["warmup"]))))
    g = torch.Generator().manual_seed(0)

    def batch(src, n):
        i = torch.randint(0, len(src) - c["ctx"] - 1, (n,), generator=g)
        w = torch.stack([src[j:j + c["ctx"] + 1] for j in i])
        return w[:, :-1], w[:, 1:]

    for step in range(c["steps"]):
        opt.zero_grad(set_to_none=True)
        tot = 0.0
        for _ in range(c["accum"]):
            x, y = batch(data, c["micro"])
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x)
            loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten()) / c["accum"]
            loss.backward()
            tot += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), c["clip"])
        opt.step()
        sched.step()
        with torch.no_grad():
            for a, b in zip(ema.parameters(), model.parameters()):
                a.lerp_(b, 1 - c["ema"])
        if step % 10 == 0 or step == c["steps"] - 1:
            with torch.no_grad():
                x, y = batch(held, 32)
                v = F.cross_entropy(ema(x).flatten(0, 1), y.flatten()).item()
            print(f"step {step} loss {tot:.4f} ema val {v:.4f}")


if __name__ == "__main__":
    main()
