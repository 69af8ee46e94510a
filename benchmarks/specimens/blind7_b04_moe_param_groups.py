TRUTH = {
    "id": "blind7-b04-moe-param-groups",
    "row": None,
    "title": "decay groups are split by ndim == 2 / ndim < 2, so the 3-d expert weight banks are in no optimizer group",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-missing-parameters"],
    "bricks": ["layers.0.moe.experts", "layers.1.moe.experts"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

V, T, D, E, H = 32, 24, 48, 4, 64


class ExpertBank(nn.Module):
    def __init__(self, n, d, h):
        super().__init__()
        self.w_in = nn.Parameter(torch.randn(n, d, h) / math.sqrt(d))
        self.w_out = nn.Parameter(torch.randn(n, h, d) / math.sqrt(h))

    def forward(self, x):  # (N, d) -> (n, N, d)
        return torch.bmm(F.silu(torch.einsum("nd,edh->enh", x, self.w_in)), self.w_out)


class MoE(nn.Module):
    def __init__(self, d, h, n, k=2):
        super().__init__()
        self.k = k
        self.router = nn.Linear(d, n, bias=False)
        self.experts = ExpertBank(n, d, h)
        self.aux = torch.zeros(())

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        p = self.router(flat).softmax(-1)
        top, idx = p.topk(self.k, -1)
        gate = torch.zeros_like(p).scatter(1, idx, top / top.sum(-1, keepdim=True))
        load = (gate > 0).float().mean(0)
        self.aux = (load * p.mean(0)).sum() * p.size(-1) / self.k
        y = torch.einsum("ne,end->nd", gate, self.experts(flat))
        return y.view_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = nn.MultiheadAttention(D, 4, batch_first=True)
        self.moe = MoE(D, H, E)

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.moe(self.n2(x))


class MoELM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.pos = nn.Embedding(T, D)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        for e in (self.tok, self.pos):
            nn.init.normal_(e.weight, std=0.1)
        self.register_buffer("mask", torch.triu(torch.ones(T, T, dtype=torch.bool), 1), persistent=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.size(1)]
        for l in self.layers:
            x = l(x, self.mask)
        return self.head(self.norm(x)), sum(l.moe.aux for l in self.layers)


def param_groups(model, wd):
    decay = [p for p in model.parameters() if p.ndim == 2]
    no_decay = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": decay, "weight_decay": wd}, {"params": no_decay, "weight_decay": 0.0}]


def sample(n, table, gen):
    """second-order automaton: next token depends on the previous two"""
    s = torch.empty(n, T + 1, dtype=torch.long)
    s[:, :2] = torch.randint(0, V, (n, 2), generator=gen)
    for t in range(2, T + 1):
        s[:, t] = table[s[:, t - 2], s[:, t - 1]]
    flip = torch.rand(n, T + 1, generator=gen) < 0.03
    return torch.where(flip, torch.randint(0, V, s.shape, generator=gen), s)


def main():
    torch.manual_seed(5)
    g = torch.Generator().manual_seed(6)
    table = torch.randint(0, V, (V, V), generator=g)
    model = MoELM()
    opt = torch.optim.AdamW(param_groups(model, 0.01), lr=4e-3, betas=(0.9, 0.95))
    steps, warm = 320, 20
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda i: (i + 1) / warm if i < warm else 0.05 + 0.475 * (1 + math.cos(math.pi * (i - warm) / (steps - warm))))
    for i in range(steps):
        s = sample(24, table, g)
        logits, aux = model(s[:, :-1])
        ce = F.cross_entropy(logits.flatten(0, 1), s[:, 1:].flatten())
        (ce + 0.01 * aux).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        model.zero_grad()
        if i % 40 == 39:
            print(f"step {i + 1} ce {ce.item():.3f} aux {aux.item():.3f}")


main()
