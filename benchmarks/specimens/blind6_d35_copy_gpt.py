"""Tiny GPT, bf16 autocast, tied head, cosine with warm restarts, correct stop and resume, weight averaging."""
import math
import os
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind6-d35-copy-gpt",
    "title": "healthy GPT with bf16 autocast, tied embeddings, warm restarts and a complete resume",
    "family": "gpt",
    "needs": "cpu",
    "trap": "lr jumps up at every restart, a full checkpoint and resume in the middle, most positions are masked out of the loss, averaged weights beside the model",
}
V, HALF, D = 20, 6, 64


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.LayerNorm(D), nn.LayerNorm(D)
        self.att = nn.MultiheadAttention(D, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x, mask):
        h = self.a(x)
        x = x + self.att(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.ff(self.b(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V + 1, D), nn.Embedding(2 * HALF + 1, D)
        nn.init.normal_(self.tok.weight, std=0.1)
        nn.init.normal_(self.pos.weight, std=0.1)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V + 1, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        t = ids.size(1)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        x = self.tok(ids) + self.pos(torch.arange(t))
        for l in self.layers:
            x = l(x, mask)
        return self.head(self.norm(x))


def batch(n):
    s = torch.randint(0, V, (n, HALF))
    ids = torch.cat([s, torch.full((n, 1), V), s], 1)
    labels = ids[:, 1:].clone()
    labels[:, :HALF] = -100
    return ids[:, :-1], labels


class Run:
    def __init__(self):
        self.model = GPT()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.opt, T_0=50, T_mult=2, eta_min=1e-4)
        self.avg = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.step = 0

    def state(self):
        return {"m": self.model.state_dict(), "o": self.opt.state_dict(), "s": self.sched.state_dict(),
                "a": self.avg, "n": self.step, "rng": torch.get_rng_state()}

    def load(self, st):
        self.model.load_state_dict(st["m"]); self.opt.load_state_dict(st["o"]); self.sched.load_state_dict(st["s"])
        self.avg, self.step = st["a"], st["n"]
        torch.set_rng_state(st["rng"])

    def train(self, until):
        while self.step < until:
            x, y = batch(48)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.model(x)
            loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            self.step += 1
            for k, v in self.model.state_dict().items():
                self.avg[k].lerp_(v, 0.03)
            if self.step % 25 == 0:
                print(f"{self.step} loss {loss.item():.4f} lr {self.opt.param_groups[0]['lr']:.5f}")


torch.manual_seed(14)
run = Run()
run.train(100)
torch.save(run.state(), "copy_gpt.pt")
run = Run()
run.load(torch.load("copy_gpt.pt"))
os.remove("copy_gpt.pt")
run.train(150)
run.model.load_state_dict(run.avg)
run.model.eval()
with torch.no_grad():
    x, y = batch(300)
    keep = y >= 0
    print("copy accuracy with averaged weights", (run.model(x).argmax(-1) == y)[keep].float().mean().item())
