import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-copy-transformer",
    "row": None,
    "title": "the attention call always raises (the mask built with numpy is float64) and the except returns the values unmixed: attention never runs",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["silent-fallback"],
    "bricks": ["layers.0.attn", "layers.1.attn"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, max_len):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim)
        mask = np.triu(np.full((max_len, max_len), -np.inf), k=1)
        self.register_buffer("mask", torch.from_numpy(mask), persistent=False)

    def split(self, t):
        b, n, d = t.shape
        return t.view(b, n, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        try:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:n, :n])
        except RuntimeError:
            # kernel not available for this shape on older builds
            y = v
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class Layer(nn.Module):
    def __init__(self, dim, heads, max_len):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, heads, max_len)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.ff(self.norm2(x))


class Copier(nn.Module):
    def __init__(self, vocab=24, dim=64, depth=2, heads=4, max_len=24):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, max_len) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab)
        nn.init.normal_(self.tok.weight, std=0.3)
        nn.init.normal_(self.pos.weight, std=0.3)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def batch(n, length, vocab, gen):
    first = torch.randint(0, vocab, (n, length), generator=gen)
    seq = torch.cat([first, first], 1)
    return seq[:, :-1], seq[:, 1:]


def loss_and_acc(model, x, y, length):
    logits = model(x)[:, length - 1 :]
    y = y[:, length - 1 :]
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), y.reshape(-1)), (logits.argmax(-1) == y).float().mean()


def train(steps=260, length=12, vocab=24, batch_size=48):
    torch.manual_seed(7)
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(1)
    model = Copier(vocab=vocab, max_len=2 * length)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=steps, pct_start=0.1)
    for step in range(1, steps + 1):
        model.train()
        loss, acc = loss_and_acc(model, *batch(batch_size, length, vocab, gen), length)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0:
            model.eval()
            with torch.no_grad():
                vl, va = loss_and_acc(model, *batch(256, length, vocab, gen), length)
            print(f"step {step} loss {loss.item():.3f} acc {acc.item():.3f} | val {vl.item():.3f} {va.item():.3f}")


if __name__ == "__main__":
    train()
