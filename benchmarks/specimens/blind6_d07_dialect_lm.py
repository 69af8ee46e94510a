"""Small language model trained from a stream of text shards in short job slices."""
import itertools
import math
import os
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind6-d07-dialect-lm",
    "row": None,
    "title": "every job slice reopens the shard stream at shard 0, the position is not in the checkpoint",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["data-order-lost-on-resume"],
    "bricks": [],
    "first_step": 50,
    "needs": "cpu",
    "crashes": False,
}

VOCAB, CTX, SHARDS, PER_SHARD, BATCH = 48, 24, 16, 25, 16
TOTAL, SLICE = 400, 50
CKPT = "dialect_lm.pt"


def dialect(k):
    g = torch.Generator().manual_seed(1000 + k)
    return torch.softmax(3.0 * torch.randn(VOCAB, VOCAB, generator=g), dim=1)


def sample_text(k, n, seed):
    """Sequences start with a dialect tag and then follow its bigram table."""
    g = torch.Generator().manual_seed(seed)
    table = dialect(k)
    out = [torch.full((n,), VOCAB + k)]
    cur = torch.randint(0, VOCAB, (n,), generator=g)
    out.append(cur)
    for _ in range(CTX - 1):
        cur = torch.multinomial(table[cur], 1, generator=g).squeeze(1)
        out.append(cur)
    return torch.stack(out, 1)


N_DIALECTS = 8


def shard_stream():
    for shard in range(SHARDS):
        n = PER_SHARD * BATCH // N_DIALECTS
        text = torch.cat([sample_text(k, n, seed=100 * shard + k) for k in range(N_DIALECTS)])
        g = torch.Generator().manual_seed(shard)
        for idx in torch.randperm(len(text), generator=g).split(BATCH):
            yield text[idx]


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class LM(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(VOCAB + N_DIALECTS, d)
        self.pos = nn.Embedding(CTX + 1, d)
        self.blocks = nn.Sequential(Block(d, 4), Block(d, 4))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        h = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        return self.head(self.norm(self.blocks(h)))

    def loss(self, ids):
        z = self(ids[:, :-1])[:, 1:]
        return F.cross_entropy(z.reshape(-1, VOCAB), ids[:, 2:].reshape(-1))


def lr_at(s):
    return min(1.0, (s + 1) / 20) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * s / TOTAL)))


def job_slice():
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_at)
    done = 0
    if os.path.exists(CKPT):
        state = torch.load(CKPT)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        sched.load_state_dict(state["sched"])
        done = state["done"]
        torch.set_rng_state(state["rng"])
        print(f"resumed at {done}")
    model.train()
    for ids in itertools.islice(shard_stream(), SLICE):
        loss = model.loss(ids)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        done += 1
        if done % 25 == 0:
            print(f"{done:4d} loss {loss.item():.3f}")
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(),
                "done": done, "rng": torch.get_rng_state()}, CKPT)
    model.eval()
    with torch.no_grad():
        v = [model.loss(sample_text(k, 64, seed=9000 + k)).item() for k in range(N_DIALECTS)]
    print(f"slice done, valid loss {sum(v) / len(v):.3f}")
    return done


torch.manual_seed(0)
if os.path.exists(CKPT):
    os.remove(CKPT)
while job_slice() < TOTAL:
    pass
os.remove(CKPT)
