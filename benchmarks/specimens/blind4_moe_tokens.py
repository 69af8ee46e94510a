import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-moe-tokens",
    "title": "Optimizer groups are picked by names ending in weight or bias, so the stacked expert tensors (w_in, w_out) belong to no group and never move.",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-missing-parameters"],
    "bricks": ["blocks.0.moe", "blocks.1.moe"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class MoE(nn.Module):
    def __init__(self, d, hidden, n_exp, k=2):
        super().__init__()
        self.k = k
        self.router = nn.Linear(d, n_exp, bias=False)
        self.w_in = nn.Parameter(torch.randn(n_exp, d, hidden) / math.sqrt(d))
        self.w_out = nn.Parameter(torch.randn(n_exp, hidden, d) / math.sqrt(hidden))
        self.aux = None

    def forward(self, x):
        b, t, d = x.shape
        flat = x.reshape(-1, d)
        probs = self.router(flat).softmax(-1)
        top, idx = probs.topk(self.k, -1)
        gate = torch.zeros_like(probs).scatter(1, idx, top / top.sum(-1, keepdim=True))
        h = F.gelu(torch.einsum("nd,edh->enh", flat, self.w_in))
        o = torch.einsum("enh,ehd->end", h, self.w_out)
        load = (gate > 0).float().mean(0)
        self.aux = (load * probs.mean(0)).sum() * probs.size(-1)
        return torch.einsum("ne,end->nd", gate, o).view(b, t, d)


class Block(nn.Module):
    def __init__(self, d, heads, n_exp):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.moe = MoE(d, 2 * d, n_exp)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm1(x)).chunk(3, -1))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(o.transpose(1, 2).reshape(b, t, d))
        return x + self.moe(self.norm2(x))


class MoELM(nn.Module):
    def __init__(self, vocab, d=32, heads=4, layers=2, n_exp=4, ctx=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(ctx, d)
        self.blocks = nn.ModuleList(Block(d, heads, n_exp) for _ in range(layers))
        self.norm_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for blk in self.blocks:
            x = blk(x)
        return self.lm_head(self.norm_f(x)), sum(b.moe.aux for b in self.blocks)


def build_optimizer(model, lr, wd):
    decay, plain = [], []
    for name, p in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            plain.append(p)
        elif name.endswith("weight"):
            decay.append(p)
    groups = [{"params": decay, "weight_decay": wd}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def corpus(vocab, n, gen):
    table = torch.randint(0, vocab, (vocab, vocab, 2), generator=gen)
    seq = [0, 1]
    coin = torch.rand(n, generator=gen)
    for i in range(n):
        seq.append(table[seq[-2], seq[-1], int(coin[i] < 0.15)].item())
    return torch.tensor(seq)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=24)
    p.add_argument("--steps", type=int, default=130)
    p.add_argument("--bs", type=int, default=16)
    p.add_argument("--lr", type=float, default=3e-3)
    a = p.parse_args([])
    torch.set_num_threads(1)
    torch.manual_seed(5)
    g = torch.Generator().manual_seed(6)
    data = corpus(a.vocab, 20000, g)
    model = MoELM(a.vocab)
    opt = build_optimizer(model, a.lr, 0.05)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, a.lr, total_steps=a.steps, pct_start=0.1)
    for s in range(a.steps):
        start = torch.randint(0, len(data) - 34, (a.bs,), generator=g)
        chunk = torch.stack([data[i:i + 33] for i in start])
        logits, aux = model(chunk[:, :-1])
        ce = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
        loss = ce + 0.01 * aux
        model.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if s % 15 == 0 or s == a.steps - 1:
            print(f"step {s} ce {ce.item():.4f} aux {aux.item():.3f}")


main()
