import os
import tempfile
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-gptresume",
    "title": "Healthy small GPT with tied embeddings, bf16 autocast, normalised accumulation and a full checkpoint that is loaded into a new trainer half-way.",
    "family": "gpt",
    "needs": "cpu",
    "trap": "model and optimizer objects are replaced half-way by new ones restored from a checkpoint, the head shares the embedding's storage, several backward passes per step",
}


@dataclass
class Cfg:
    vocab: int = 20
    ctx: int = 24
    dim: int = 48
    heads: int = 4
    layers: int = 2
    micro: int = 8
    accum: int = 3
    steps: int = 140
    lr: float = 4e-3
    warmup: int = 10


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.ln1, self.ln2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.attn, self.proj = nn.Linear(c.dim, 3 * c.dim), nn.Linear(c.dim, c.dim)
        self.mlp = nn.Sequential(nn.Linear(c.dim, 4 * c.dim), nn.GELU(), nn.Linear(4 * c.dim, c.dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.c.heads, -1).transpose(1, 2) for z in self.attn(self.ln1(x)).chunk(3, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c.vocab, c.dim), nn.Embedding(c.ctx, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.ln_f = nn.LayerNorm(c.dim)
        self.lm_head = nn.Linear(c.dim, c.vocab, bias=False)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.05)
        self.lm_head.weight = self.wte.weight

    def forward(self, x):
        h = self.wte(x) + self.wpe(torch.arange(x.size(1)))
        for b in self.blocks:
            h = b(h)
        return self.lm_head(self.ln_f(h))


class Trainer:
    def __init__(self, c):
        self.c, self.step_no = c, 0
        self.gen = torch.Generator().manual_seed(91)
        self.model = GPT(c)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=c.lr, betas=(0.9, 0.95), weight_decay=0.05)
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: min((s + 1) / c.warmup, max(0.05, 1 - (s - c.warmup) / (c.steps - c.warmup))))

    def batch(self):
        c = self.c
        start = torch.randint(0, c.vocab, (c.micro, 1), generator=self.gen)
        inc = torch.randint(1, 6, (c.micro, 1), generator=self.gen)
        seq = (start + inc * torch.arange(c.ctx + 1)) % c.vocab
        bad = torch.rand(seq.shape, generator=self.gen) < 0.03
        seq = torch.where(bad, torch.randint(0, c.vocab, seq.shape, generator=self.gen), seq)
        return seq[:, :-1], seq[:, 1:]

    def train_step(self):
        total = 0.0
        self.opt.zero_grad(set_to_none=True)
        for _ in range(self.c.accum):
            x, y = self.batch()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.model(x)
            loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten()) / self.c.accum
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.sched.step()
        self.step_no += 1
        return total

    def save(self, path):
        torch.save({
            "model": self.model.state_dict(), "opt": self.opt.state_dict(), "sched": self.sched.state_dict(),
            "step": self.step_no, "gen": self.gen.get_state(), "cfg": asdict(self.c),
        }, path)

    @classmethod
    def load(cls, path):
        ck = torch.load(path)
        t = cls(Cfg(**ck["cfg"]))
        t.model.load_state_dict(ck["model"])
        t.opt.load_state_dict(ck["opt"])
        t.sched.load_state_dict(ck["sched"])
        t.gen.set_state(ck["gen"])
        t.step_no = ck["step"]
        return t

    def fit(self, until):
        while self.step_no < until:
            loss = self.train_step()
            if self.step_no % 10 == 1:
                print(f"step {self.step_no - 1} loss {loss:.4f} lr {self.sched.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(90)
    cfg = Cfg()
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "ckpt.pt")
        first = Trainer(cfg)
        first.fit(cfg.steps // 2)
        first.save(path)
        del first
        second = Trainer.load(path)
    second.fit(cfg.steps)
