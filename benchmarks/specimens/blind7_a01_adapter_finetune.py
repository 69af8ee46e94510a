"""Adapter finetuning of a small text classifier: pretrain on the source domain, then adapt to the target one."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind7-a01-adapter-finetune",
    "row": None,
    "title": "finetuning takes its step counter from the pretraining checkpoint: 60 steps at the tail of the lr decay instead of 300",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["resume-step-leaked"],
    "bricks": [],
    "first_step": 240,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class PhaseConfig:
    name: str
    max_steps: int
    lr: float
    warmup: int
    batch: int = 64


VOCAB, SEQ, CLASSES, DIM = 64, 16, 8, 64


def make_domain(n, seed, shift):
    g = torch.Generator().manual_seed(seed)
    topic = torch.randint(0, CLASSES, (n,), generator=g)
    x = torch.randint(0, VOCAB, (n, SEQ), generator=g)
    keyed = torch.rand(n, SEQ, generator=g) < 0.35
    marker = ((topic + shift) % CLASSES)[:, None] * 4 + torch.randint(0, 4, (n, SEQ), generator=g)
    return torch.where(keyed, marker, x), topic


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r=8, alpha=16):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.A), self.B) * self.scale


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(a)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(SEQ, DIM) * 0.02)
        self.blocks = nn.ModuleList(Block(DIM) for _ in range(2))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, ids):
        h = self.emb(ids) + self.pos
        for blk in self.blocks:
            h = blk(h)
        return self.head(self.norm(h).mean(1))


class Trainer:
    def __init__(self, model, cfg: PhaseConfig, data, valid):
        self.model, self.cfg, self.data, self.valid = model, cfg, data, valid
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.opt = torch.optim.AdamW(self.params, lr=cfg.lr, weight_decay=0.01)
        self.step = 0

    def lr_at(self, s):
        c = self.cfg
        if s < c.warmup:
            return c.lr * (s + 1) / c.warmup
        return 0.5 * c.lr * (1 + math.cos(math.pi * (s - c.warmup) / (c.max_steps - c.warmup)))

    @torch.no_grad()
    def accuracy(self):
        self.model.eval()
        acc = (self.model(self.valid[0]).argmax(-1) == self.valid[1]).float().mean().item()
        self.model.train()
        return acc

    def fit(self):
        x, y = self.data
        while self.step < self.cfg.max_steps:
            for group in self.opt.param_groups:
                group["lr"] = self.lr_at(self.step)
            idx = torch.randint(0, len(x), (self.cfg.batch,))
            loss = F.cross_entropy(self.model(x[idx]), y[idx])
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.params, 1.0)
            self.opt.step()
            if self.step % 30 == 0:
                print(f"[{self.cfg.name}] step {self.step} loss {loss.item():.4f} lr {self.lr_at(self.step):.2e}")
            self.step += 1
        print(f"[{self.cfg.name}] done at {self.step}, valid acc {self.accuracy():.3f}")

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "step": self.step}, path)

    def load(self, path):
        ckpt = torch.load(path)
        self.model.load_state_dict(ckpt["model"])
        self.step = ckpt["step"]


def add_adapters(model):
    for p in model.parameters():
        p.requires_grad_(False)
    for blk in model.blocks:
        for name in ("qkv", "up", "down"):
            setattr(blk, name, LoRALinear(getattr(blk, name)))
    for p in model.head.parameters():
        p.requires_grad_(True)


def main():
    torch.manual_seed(11)
    base = Trainer(Classifier(), PhaseConfig("pretrain", 240, 2e-3, 20),
                   make_domain(4000, 0, 0), make_domain(500, 1, 0))
    base.fit()
    base.save("source_domain.pt")

    model = Classifier()
    tuner = Trainer(model, PhaseConfig("adapt", 300, 2e-3, 20), make_domain(2000, 2, 3), make_domain(500, 3, 3))
    tuner.load("source_domain.pt")
    add_adapters(model)
    tuner.params = [p for p in model.parameters() if p.requires_grad]
    tuner.opt = torch.optim.AdamW(tuner.params, lr=tuner.cfg.lr, weight_decay=0.01)
    tuner.fit()


if __name__ == "__main__":
    main()
