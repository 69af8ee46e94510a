import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

TRUTH = {
    "id": "blind-checkpointed-gpt",
    "title": "small GPT with activation checkpointing under bf16 autocast, tied head",
    "family": "gpt",
    "needs": "cpu",
    "trap": "every block runs forward twice per step, bf16 activations, tied weights, loss computed in fp32 outside autocast",
}

V, T, D, H, L = 16, 18, 32, 4, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.fc, self.pr = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, H, d // H).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(a)
        return x + self.pr(F.gelu(self.fc(self.n2(x))))


class TinyGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(T, D)
        self.h = nn.ModuleList([Block() for _ in range(L)])
        self.ln_f = nn.LayerNorm(D)
        self.lm_head = nn.Linear(D, V, bias=False)
        self.lm_head.weight = self.wte.weight
        for n, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * L) if n.endswith(("o.weight", "pr.weight")) else 1))

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for blk in self.h:
            x = checkpoint(blk, x, use_reentrant=False) if self.training else blk(x)
        return self.lm_head(self.ln_f(x))


def sequences(n, g):
    """Periodic sequences with a random motif: the second repetition on is predictable from context."""
    period = 6
    motif = torch.randint(V, (n, period), generator=g)
    return motif.repeat(1, T // period + 1)[:, : T + 1]


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = TinyGPT()
    decay = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=5e-3, betas=(0.9, 0.95)
    )
    steps, warm = 300, 20
    sched = torch.optim.lr_scheduler.SequentialLR(
        opt,
        [
            torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, warm),
            torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps - warm, eta_min=1e-4),
        ],
        [warm],
    )
    val = sequences(64, torch.Generator().manual_seed(2))
    for step in range(steps):
        model.train()
        s = sequences(24, g)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(s[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), s[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 75 == 0 or step == steps - 1:
            model.eval()
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(val[:, :-1])
            vl = F.cross_entropy(out.float().flatten(0, 1), val[:, 1:].flatten()).item()
            print(f"step {step} train {loss.item():.4f} val {vl:.4f} lr {sched.get_last_lr()[0]:.5f}")


if __name__ == "__main__":
    main()
