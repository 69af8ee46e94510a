"""Beta-VAE on 12x12 binary glyphs, mixed precision on CPU."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

TRUTH = {
    "id": "blind5-b05-vae-glyphs",
    "row": None,
    "title": "gradients are clipped while still multiplied by the loss scale (no unscale_ before clip), then divided by it: updates 65536 times too small",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["loss-scale-misused", "grad-clip-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def glyphs(n, seed):
    g = torch.Generator().manual_seed(seed)
    img = torch.zeros(n, 12, 12)
    r = torch.randint(0, 12, (n,), generator=g)
    c = torch.randint(0, 12, (n,), generator=g)
    kind = torch.randint(0, 3, (n,), generator=g)
    idx = torch.arange(n)
    horiz, vert, box = kind == 0, kind == 1, kind == 2
    img[idx[horiz], r[horiz]] = 1
    img[idx[vert], :, c[vert]] = 1
    for i in idx[box].tolist():
        a, b = int(r[i]) % 7, int(c[i]) % 7
        img[i, a:a + 5, b:b + 5] = 1
    return img.flatten(1)


class VAE(nn.Module):
    def __init__(self, d=144, h=128, z=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.GELU(), nn.Linear(h, h), nn.GELU())
        self.to_mu = nn.Linear(h, z)
        self.to_lv = nn.Linear(h, z)
        self.dec = nn.Sequential(nn.Linear(z, h), nn.GELU(), nn.Linear(h, h), nn.GELU(), nn.Linear(h, d))

    def forward(self, x):
        h = self.enc(x)
        mu, lv = self.to_mu(h), self.to_lv(h).clamp(-8, 8)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        return self.dec(z), mu, lv


def elbo(logits, x, mu, lv, beta):
    rec = F.binary_cross_entropy_with_logits(logits.float(), x, reduction="none").sum(1).mean()
    kl = -0.5 * (1 + lv.float() - mu.float() ** 2 - lv.float().exp()).sum(1).mean()
    return rec + beta * kl, rec, kl


def train():
    torch.manual_seed(21)
    data, held = glyphs(3072, 1), glyphs(512, 2)
    model = VAE()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler("cpu")
    n_epochs, bs = 12, 96
    for epoch in range(n_epochs):
        model.train()
        beta = min(1.0, (epoch + 1) / 6)
        for ids in torch.randperm(len(data)).split(bs):
            x = data[ids]
            opt.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits, mu, lv = model(x)
            loss, rec, kl = elbo(logits, x, mu, lv, beta)
            scaler.scale(loss).backward()
            clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(opt)
            scaler.update()
        model.eval()
        with torch.no_grad():
            logits, mu, lv = model(held)
            v, r, k = elbo(logits, held, mu, lv, 1.0)
        print(f"epoch {epoch:2d} train {loss.item():7.2f} | held-out {v.item():7.2f} rec {r.item():.2f} kl {k.item():.2f}")


if __name__ == "__main__":
    train()
