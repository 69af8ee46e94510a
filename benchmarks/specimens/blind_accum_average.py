from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-accum-average",
    "title": "conv VAE with bf16 autocast, 4-fold accumulation (normalised), KL annealing and an EMA copy for evaluation",
    "family": "cnn",
    "needs": "cpu",
    "trap": "the loss rises a little while the KL weight is annealed up; gradients are zeroed only every fourth backward; a second copy of the weights never gets gradients",
}


@dataclass
class C:
    accum: int = 4
    micro: int = 16
    epochs: int = 6
    lr: float = 3e-3
    zdim: int = 6


class VAE(nn.Module):
    def __init__(self, z):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.SiLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(24 * 16, 2 * z))
        self.fc = nn.Linear(z, 24 * 16)
        self.dec = nn.Sequential(nn.SiLU(), nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(12, 1, 4, 2, 1))

    def forward(self, x):
        mu, lv = self.enc(x).float().chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp() if self.training else mu
        return self.dec(self.fc(z).view(-1, 24, 4, 4)).float(), mu, lv


def blobs(n, seed, s=16):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(s).float(), torch.arange(s).float(), indexing="ij")
    c = 3 + 10 * torch.rand(n, 2, generator=g)
    r = 2 + 3 * torch.rand(n, generator=g)
    d = ((yy - c[:, 0, None, None]) ** 2 + (xx - c[:, 1, None, None]) ** 2) / r[:, None, None] ** 2
    return torch.exp(-d)[:, None]


def main():
    c = C()
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(blobs(1024, 0)), c.micro, shuffle=True, drop_last=True)
    val = blobs(128, 1)
    net = VAE(c.zdim)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    opt = torch.optim.AdamW(net.parameters(), lr=c.lr)
    total = c.epochs * len(loader) // c.accum
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total, eta_min=1e-4)
    upd = 0
    for ep in range(c.epochs):
        net.train()
        run = 0.0
        for i, (x,) in enumerate(loader):
            beta = min(1.0, upd / 30)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                rec, mu, lv = net(x)
            mse = 20.0 * F.mse_loss(rec, x, reduction="sum") / len(x)
            kl = -0.5 * (1 + lv - mu**2 - lv.exp()).sum(1).mean()
            loss = (mse + beta * kl) / c.accum
            loss.backward()
            run += loss.item() * c.accum
            if (i + 1) % c.accum == 0:
                nn.utils.clip_grad_norm_(net.parameters(), 200.0)
                opt.step()
                sched.step()
                opt.zero_grad(set_to_none=True)
                ema.update_parameters(net)
                upd += 1
        ema.eval()
        with torch.no_grad():
            v = F.mse_loss(ema(val)[0], val)
        print(f"epoch {ep} elbo {run / len(loader):.3f} beta {beta:.2f} ema val mse {v:.5f}")


if __name__ == "__main__":
    main()
