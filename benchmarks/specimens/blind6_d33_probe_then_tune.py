"""Self-supervised denoising pretraining, a linear probe on the frozen encoder, then gentle full tuning."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind6-d33-probe-then-tune",
    "title": "healthy three-stage tabular run: denoising pretraining, frozen probe, low-lr tuning",
    "family": "mlp",
    "needs": "cpu",
    "trap": "encoder frozen in stage 2, decoder unused later, a new optimizer and new lr cycle per stage, loss kind changes, very small encoder lr in stage 3",
}


def table(n, seed):
    g = torch.Generator().manual_seed(5)
    mix, w = torch.randn(6, 30, generator=g), torch.randn(6, 4, generator=g)
    g2 = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 6, generator=g2)
    x = torch.tanh(z @ mix / 2) + 0.1 * torch.randn(n, 30, generator=g2)
    return (x - x.mean(0)) / x.std(0), (z @ w).argmax(1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(30, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 24))

    def forward(self, x):
        return self.net(x)


def stage(name, modules, groups, loader, epochs, max_lr, compute):
    opt = torch.optim.AdamW(groups, weight_decay=1e-3)
    sched = OneCycleLR(opt, max_lr=max_lr, total_steps=epochs * len(loader), pct_start=0.15)
    for m in modules:
        m.train()
    params = [p for g in opt.param_groups for p in g["params"]]
    for ep in range(epochs):
        tot = 0.0
        for x, y in loader:
            loss = compute(x, y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 1.0)
            opt.step()
            sched.step()
            tot += loss.item()
        print(f"{name} epoch {ep} loss {tot / len(loader):.4f}")


@torch.no_grad()
def test(enc, head):
    enc.eval(), head.eval()
    return (head(enc(XT)).argmax(1) == YT).float().mean().item()


torch.manual_seed(9)
X, Y = table(4000, 1)
XT, YT = table(800, 2)
big = DataLoader(TensorDataset(X, Y), 64, shuffle=True, drop_last=True)
small = DataLoader(TensorDataset(X[:2000], Y[:2000]), 32, shuffle=True, drop_last=True)
enc, dec, head = Encoder(), nn.Linear(24, 30), nn.Linear(24, 4)

stage("pretrain", [enc, dec], [{"params": [*enc.parameters(), *dec.parameters()]}], big, 3, 3e-3,
      lambda x, y: F.mse_loss(dec(enc(x * (torch.rand_like(x) > 0.2))), x))
enc.requires_grad_(False)
stage("probe", [head], [{"params": head.parameters()}], small, 2, 2e-2,
      lambda x, y: F.cross_entropy(head(enc(x)), y))
print(f"probe accuracy {test(enc, head):.3f}")
enc.requires_grad_(True)
stage("tune", [enc, head], [{"params": enc.parameters()}, {"params": head.parameters()}], small, 3, [3e-3, 5e-3],
      lambda x, y: F.cross_entropy(head(enc(x)), y, label_smoothing=0.05))
print(f"tuned accuracy {test(enc, head):.3f}")
