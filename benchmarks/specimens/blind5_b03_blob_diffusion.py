"""DDPM on 16x16 two-blob images with a two-level U-Net."""
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind5-b03-blob-diffusion",
    "row": None,
    "title": "warm-up length counts samples (warmup_epochs * len(dataset)) instead of batches: lr never gets past a few percent of its peak",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["schedule-never-peaks"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

CONFIG = dict(lr=1e-3, batch_size=32, epochs=6, warmup_epochs=2, T=100, width=12, seed=11)


class Blobs(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.arange(16.), torch.arange(16.), indexing="ij")
        c = torch.rand(n, 2, 2, generator=g) * 9 + 3.5
        img = torch.zeros(n, 16, 16)
        for k in range(2):
            img += torch.exp(-((xx - c[:, k, 0, None, None]) ** 2 + (yy - c[:, k, 1, None, None]) ** 2) / 5)
        self.img = img.clamp(0, 1).unsqueeze(1) * 2 - 1

    def __len__(self):
        return len(self.img)

    def __getitem__(self, i):
        return self.img[i]


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(1000.) * torch.arange(dim // 2) / (dim // 2))
    a = t[:, None].float() * freqs[None]
    return torch.cat([a.sin(), a.cos()], -1)


class ConvBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.n = nn.GroupNorm(4, cin) if cin % 4 == 0 else nn.Identity()
        self.c1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.e = nn.Linear(emb, cout)
        self.n2 = nn.GroupNorm(4, cout)
        self.c2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1)

    def forward(self, x, emb):
        h = self.c1(F.silu(self.n(x))) + self.e(emb)[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(h)))


class UNet(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = w
        self.time = nn.Sequential(nn.Linear(w * 2, w * 4), nn.SiLU(), nn.Linear(w * 4, w * 4), nn.SiLU())
        self.d1 = ConvBlock(1, w, w * 4)
        self.d2 = ConvBlock(w, w * 2, w * 4)
        self.mid = ConvBlock(w * 2, w * 2, w * 4)
        self.u2 = ConvBlock(w * 4, w, w * 4)
        self.u1 = ConvBlock(w * 2, w, w * 4)
        self.out = nn.Conv2d(w, 1, 3, padding=1)

    def forward(self, x, t):
        e = self.time(timestep_embedding(t, self.w * 2))
        a = self.d1(x, e)
        b = self.d2(F.avg_pool2d(a, 2), e)
        m = self.mid(F.avg_pool2d(b, 2), e)
        u = self.u2(torch.cat([F.interpolate(m, scale_factor=2), b], 1), e)
        u = self.u1(torch.cat([F.interpolate(u, scale_factor=2), a], 1), e)
        return self.out(F.silu(u))


def main(cfg):
    torch.manual_seed(cfg["seed"])
    data = Blobs(1024, 0)
    loader = DataLoader(data, cfg["batch_size"], shuffle=True, drop_last=True)
    betas = torch.linspace(1e-4, 0.06, cfg["T"])
    abar = torch.cumprod(1 - betas, 0)
    net = UNet(cfg["width"])
    opt = torch.optim.AdamW(net.parameters(), lr=cfg["lr"], weight_decay=1e-4)

    warmup = cfg["warmup_epochs"] * len(data)
    total = cfg["epochs"] * len(data)

    def factor(it):
        if it < warmup:
            return (it + 1) / warmup
        p = (it - warmup) / max(1, total - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, p)))

    sched = torch.optim.lr_scheduler.LambdaLR(opt, factor)

    it, ema = 0, None
    for epoch in range(cfg["epochs"]):
        for x in loader:
            t = torch.randint(0, cfg["T"], (x.size(0),))
            eps = torch.randn_like(x)
            a = abar[t][:, None, None, None]
            xt = a.sqrt() * x + (1 - a).sqrt() * eps
            loss = F.mse_loss(net(xt, t), eps)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            sched.step()
            ema = loss.item() if ema is None else 0.97 * ema + 0.03 * loss.item()
            it += 1
        print(f"epoch {epoch} it {it} eps-mse {ema:.4f}")


main(CONFIG)
