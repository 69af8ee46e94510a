import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind5-c32-lora-tied-lm", "title": "LoRA fine-tuning of a frozen, tied transformer LM under bf16 autocast", "family": "gpt",
           "needs": "cpu", "trap": "most parameters frozen, lora_a has exactly zero gradient at the first step (lora_b starts at 0), tied weights"}

torch.manual_seed(6)
V, T, D = 24, 16, 48


class Adapter(nn.Module):
    def __init__(self, lin, r=8, alpha=16.0):
        super().__init__()
        self.lin = lin.requires_grad_(False)
        self.lora_a = nn.Linear(lin.in_features, r, bias=False)
        self.lora_b = nn.Linear(r, lin.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)
        self.k = alpha / r

    def forward(self, x):
        return self.lin(x) + self.k * self.lora_b(self.lora_a(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.fc1, self.fc2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        B, S, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        q, k, v = (t.view(B, S, 4, D // 4).transpose(1, 2) for t in (q, k, v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, S, D))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.ln = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        nn.init.normal_(self.tok.weight, std=0.15)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for b in self.blocks:
            x = b(x)
        return self.head(self.ln(x))


def walks(n, style):
    """Random walks on a ring; the style is the stride, with an occasional step back."""
    seq = torch.randint(0, V, (n, 1))
    for _ in range(T):
        back = torch.rand(n, 1) < 0.15
        seq = torch.cat([seq, (seq[:, -1:] + torch.where(back, -1, style)) % V], 1)
    return seq


def loss_on(model, seq):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(seq[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), seq[:, 1:].flatten())


def fit(model, params, style, steps, lr):
    opt = torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=lr, total_steps=steps, pct_start=0.15)
    for s in range(steps):
        loss = loss_on(model, walks(24, style))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if s < steps - 1:
            sched.step()
        if s % 40 == 0 or s == steps - 1:
            print(f"  {s:4d} {loss.item():.3f}")


lm = LM()
print("base")
fit(lm, list(lm.parameters()), 3, 140, 4e-3)
lm.requires_grad_(False)
for blk in lm.blocks:
    for name in ("qkv", "out", "fc1", "fc2"):
        setattr(blk, name, Adapter(getattr(blk, name)))
trainable = [p for p in lm.parameters() if p.requires_grad]
with torch.no_grad():
    print(f"new domain before {loss_on(lm, walks(128, 7)):.3f}")
fit(lm, trainable, 7, 150, 8e-3)
with torch.no_grad():
    print(f"new domain after  {loss_on(lm, walks(128, 7)):.3f}")
