import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-moe",
    "title": "top-2 mixture of experts with load-balancing loss",
    "family": "other",
    "needs": "cpu",
    "trap": "experts get gradients only from their tokens, auxiliary loss has a floor near 1, hard routing",
}


class Expert(nn.Module):
    def __init__(self, dim, hid):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hid), nn.Linear(hid, dim)

    def forward(self, x):
        return self.fc2(F.silu(self.fc1(x)))


class MoE(nn.Module):
    def __init__(self, dim, hid, n_experts=4, k=2):
        super().__init__()
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.experts = nn.ModuleList([Expert(dim, hid) for _ in range(n_experts)])
        self.n, self.k = n_experts, k

    def forward(self, x):
        p = F.softmax(self.gate(x), -1)
        w, idx = p.topk(self.k, -1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            tok, slot = (idx == e).nonzero(as_tuple=True)
            if len(tok):
                out = out.index_add(0, tok, expert(x[tok]) * w[tok, slot, None])
        frac = F.one_hot(idx, self.n).float().sum(1).mean(0) / self.k
        aux = self.n * (frac.detach() * p.mean(0)).sum()
        return out, aux, frac


class Net(nn.Module):
    def __init__(self, d_in=10, dim=32):
        super().__init__()
        self.inp = nn.Linear(d_in, dim)
        self.norm1, self.moe1 = nn.LayerNorm(dim), MoE(dim, 32)
        self.norm2, self.moe2 = nn.LayerNorm(dim), MoE(dim, 32)
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        h = self.inp(x)
        a, aux1, f1 = self.moe1(self.norm1(h))
        h = h + a
        b, aux2, f2 = self.moe2(self.norm2(h))
        return self.out(h + b).squeeze(1), aux1 + aux2, (f1, f2)


def batch(n, g):
    """Four regimes chosen by the signs of two features, a different function in each."""
    x = torch.randn(n, 10, generator=g)
    r = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    fs = torch.stack([x[:, 2] * x[:, 3], torch.sin(2 * x[:, 4]), x[:, 5] - x[:, 6], x[:, 7].abs() - 0.8], 1)
    return x, fs.gather(1, r[:, None]).squeeze(1) + 0.05 * torch.randn(n, generator=g)


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    net = Net()
    steps = 500
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 5e-3, total_steps=steps, pct_start=0.15)
    vx, vy = batch(1000, torch.Generator().manual_seed(2))
    for step in range(steps):
        x, y = batch(256, g)
        pred, aux, _ = net(x)
        mse = F.mse_loss(pred, y)
        loss = mse + 0.02 * aux
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 50 == 0 or step == steps - 1:
            net.eval()
            with torch.no_grad():
                p, a, (f1, _) = net(vx)
            net.train()
            print(
                f"step {step} mse {mse.item():.4f} aux {aux.item():.3f} val {F.mse_loss(p, vy).item():.4f} load {[round(v, 2) for v in f1.tolist()]}"
            )


main()
