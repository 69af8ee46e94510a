TRUTH = {"id": "blind7-b36-multitask-uncertainty", "title": "healthy multi-task model with learned task variances, normalised accumulation, bf16 autocast and an active clip", "family": "mlp", "needs": "cpu",
         "trap": "total loss goes negative; gradients are clipped at many early steps; four backwards per optimizer step; bf16 activations"}
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Args:
    lr: float = 2e-3
    accum: int = 4
    micro: int = 16
    epochs: int = 6
    clip: float = 1.0
    warmup: int = 20


def build(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(12, 4, generator=torch.Generator().manual_seed(80))
    x = torch.randn(n, 12, generator=g)
    h = torch.tanh(x @ w / 2)
    depth = (h[:, 0] * h[:, 1] + 0.5 * h[:, 2]) + 0.02 * torch.randn(n, generator=g)
    normal = 0.3 * h[:, 3] + 0.01 * torch.randn(n, generator=g)
    cls = (h[:, 0] > 0).long() + 2 * (h[:, 2] > 0).long()
    return TensorDataset(x, depth, normal, cls)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU())
        self.heads = nn.ModuleDict({"depth": nn.Linear(96, 1), "normal": nn.Linear(96, 1), "cls": nn.Linear(96, 4)})
        self.log_var = nn.ParameterDict({k: nn.Parameter(torch.zeros(())) for k in self.heads})

    def forward(self, x):
        z = self.trunk(x)
        return {k: h(z).float() for k, h in self.heads.items()}

    def loss(self, out, d, n, c):
        raw = {"depth": F.mse_loss(out["depth"].squeeze(-1), d), "normal": F.mse_loss(out["normal"].squeeze(-1), n),
               "cls": F.cross_entropy(out["cls"], c)}
        tot = sum((0.5 if k != "cls" else 1.0) * torch.exp(-self.log_var[k]) * v + 0.5 * self.log_var[k] for k, v in raw.items())
        return tot, raw


@torch.no_grad()
def validate(model, dl):
    model.eval()
    acc = err = k = 0
    for x, d, n, c in dl:
        o = model(x)
        acc += (o["cls"].argmax(1) == c).sum().item()
        err += (o["depth"].squeeze(-1) - d).pow(2).sum().item()
        k += len(x)
    model.train()
    return acc / k, (err / k) ** 0.5


def main(a=Args()):
    torch.manual_seed(81)
    dl = DataLoader(build(4096, 82), a.micro, shuffle=True, drop_last=True)
    vl = DataLoader(build(512, 83), 256)
    m = MultiTask()
    opt = torch.optim.AdamW(m.parameters(), lr=a.lr, weight_decay=0.0)
    total = a.epochs * len(dl) // a.accum
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / a.warmup, 1 - 0.98 * max(0, s - a.warmup) / (total - a.warmup)))
    for ep in range(a.epochs):
        for k, b in enumerate(dl):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = m(b[0])
            loss, raw = m.loss(out, *b[1:])
            (loss / a.accum).backward()
            if (k + 1) % a.accum == 0:
                nn.utils.clip_grad_norm_(m.parameters(), a.clip)
                opt.step()
                sched.step()
                opt.zero_grad()
        acc, rmse = validate(m, vl)
        print(f"epoch {ep} loss {loss.item():+.3f} " + " ".join(f"{k}={v.item():.4f}" for k, v in raw.items()) + f" | val acc {acc:.3f} rmse {rmse:.4f}")


if __name__ == "__main__":
    main()
