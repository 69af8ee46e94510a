import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-c13-lora-from-base",
    "row": None,
    "title": "the step counter of the base checkpoint is taken over by the fine-tuning run: its schedule starts past the end, lr sits at the floor",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["resume-step-leaked"],
    "bricks": [],
    "first_step": 220,
    "needs": "cpu",
    "crashes": False,
}

VOCAB, CTX, DIM = 32, 24, 64
BASE = "lora_base.pt"
PRETRAIN = dict(lr=2e-3, min_lr=1e-5, warmup=20, max_steps=220, batch=32)
FINETUNE = dict(lr=5e-3, min_lr=1e-6, warmup=10, max_steps=180, batch=32, rank=8, alpha=16)


def chain(seed):
    g = torch.Generator().manual_seed(seed)
    p = torch.full((VOCAB, VOCAB), 0.002)
    for i in range(VOCAB):
        a, b = torch.randperm(VOCAB, generator=g)[:2]
        p[i, a], p[i, b] = 0.75, 0.2
    return p / p.sum(1, keepdim=True)


def sample(p, n):
    seq = torch.randint(0, VOCAB, (n, 1))
    for _ in range(CTX):
        seq = torch.cat([seq, torch.multinomial(p[seq[:, -1]], 1)], 1)
    return seq


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.v_proj, self.o_proj = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (f(x).view(B, T, 4, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, DIM))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2, self.attn = nn.LayerNorm(DIM), nn.LayerNorm(DIM), Attention()
        self.up_proj, self.down_proj = nn.Linear(DIM, 3 * DIM), nn.Linear(3 * DIM, DIM)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.down_proj(F.gelu(self.up_proj(self.ln2(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(CTX, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.lm_head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.embed(ids) + self.pos.weight[: ids.size(1)]
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features ** 0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.lora_a.t() @ self.lora_b.t())


def add_lora(model, rank, alpha):
    model.requires_grad_(False)
    for mod in list(model.modules()):
        for name, child in list(mod.named_children()):
            if isinstance(child, nn.Linear) and (name.endswith("_proj") or name == "lm_head"):
                setattr(mod, name, LoRALinear(child, rank, alpha))
    return [p for p in model.parameters() if p.requires_grad]


def lr_at(step, c):
    if step < c["warmup"]:
        return c["lr"] * (step + 1) / c["warmup"]
    t = min(1.0, (step - c["warmup"]) / (c["max_steps"] - c["warmup"]))
    return c["min_lr"] + 0.5 * (c["lr"] - c["min_lr"]) * (1 + math.cos(math.pi * t))


def nll(model, seq):
    return F.cross_entropy(model(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten())


def run(tag, model, params, p, c, step=0):
    opt = torch.optim.AdamW(params, lr=c["lr"], weight_decay=0.0)
    held_out = sample(p, 128)
    for _ in range(c["max_steps"]):
        for group in opt.param_groups:
            group["lr"] = lr_at(step, c)
        loss = nll(model, sample(p, c["batch"]))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if step % 30 == 0:
            print(f"{tag} step {step} loss {loss.item():.3f}")
        step += 1
    with torch.no_grad():
        print(f"{tag} held-out {nll(model, held_out).item():.3f}")
    return step


def main():
    torch.manual_seed(1)
    base = LM()
    step = run("base", base, list(base.parameters()), chain(1), PRETRAIN)
    torch.save({"model": base.state_dict(), "step": step}, BASE)

    ckpt = torch.load(BASE)
    model = LM()
    model.load_state_dict(ckpt["model"])
    params = add_lora(model, FINETUNE["rank"], FINETUNE["alpha"])
    print(f"trainable {sum(p.numel() for p in params)} of {sum(p.numel() for p in model.parameters())}")
    target = 0.5 * chain(1) + 0.5 * chain(2)
    target[::2] = chain(2)[::2]
    run("lora", model, params, target, FINETUNE, step=ckpt.get("step", 0))
    os.remove(BASE)


if __name__ == "__main__":
    main()
