"""Low-rank adapters on a frozen encoder."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-adapter-transfer",
    "title": "encoder pretrained on one task, then frozen; LoRA adapters (B zero-initialised) and a new head trained with bf16 autocast",
    "family": "other",
    "needs": "cpu",
    "trap": "most parameters frozen in the second stage, lora_A has exactly zero gradient on its first step, a second optimizer owns a subset, bf16 activations",
}

V, T = 60, 16


def sample(n, task):
    x = torch.randint(0, V, (n, T))
    group = x % 5
    counts = F.one_hot(group, 5).sum(1).float() + 0.01 * torch.rand(n, 5)
    if task == "majority":
        return x, counts.argmax(1)
    return x, ((counts[:, 0] + counts[:, 3]) > (counts[:, 1] + counts[:, 4])).long()


class Encoder(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.v = nn.Linear(d, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        h = self.emb(x)
        n = self.norm1(h)
        h = h + F.scaled_dot_product_attention(self.q(n), self.k(n), self.v(n))
        return (h + self.ff(self.norm2(h))).mean(1)


class Classifier(nn.Module):
    def __init__(self, encoder, n_out, d=48):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(d, n_out)

    def forward(self, x):
        return self.head(self.encoder(x))


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)


def add_adapters(encoder):
    encoder.requires_grad_(False)
    encoder.q, encoder.v = LoRALinear(encoder.q), LoRALinear(encoder.v)
    encoder.ff[0], encoder.ff[2] = LoRALinear(encoder.ff[0]), LoRALinear(encoder.ff[2])
    return encoder


@torch.no_grad()
def evaluate(model, task):
    model.eval()
    x, y = sample(800, task)
    a = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return a


def fit(model, task, steps, lr, amp):
    params = [p for p in model.parameters() if p.requires_grad]
    print(f"{task}: {sum(p.numel() for p in params)} of {sum(p.numel() for p in model.parameters())} parameters train")
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10) * max(0.0, 1 - s / steps))
    for s in range(steps):
        x, y = sample(64, task)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if s % 40 == 0 or s == steps - 1:
            print(f"  step {s} loss {loss.item():.4f} acc {evaluate(model, task):.3f}")


if __name__ == "__main__":
    torch.manual_seed(23)
    base = Classifier(Encoder(), 5)
    fit(base, "majority", 260, 4e-3, amp=False)
    tuned = Classifier(add_adapters(base.encoder), 2)
    fit(tuned, "balance", 200, 4e-3, amp=True)
