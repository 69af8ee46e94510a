"""VAE on synthetic 10x10 bar images, separate learning rates for its parts."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import yaml

TRUTH = {
    "id": "blind-vae-groups",
    "row": None,
    "title": "the lr table names 'decode' while the module is 'decoder', so the decoder is in no parameter group",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-missing-parameters"],
    "bricks": ["decoder"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

CONFIG = yaml.safe_load("""
steps: 400
batch: 64
latent: 6
beta: 0.5
lr:
  encoder: 0.002
  mu: 0.002
  logvar: 0.002
  decode: 0.003
""")


class VAE(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(100, 96), nn.SiLU(), nn.Linear(96, 64), nn.SiLU())
        self.mu = nn.Linear(64, latent)
        self.logvar = nn.Linear(64, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.SiLU(), nn.Linear(64, 96), nn.SiLU(), nn.Linear(96, 100))

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar) if self.training else mu
        return self.decoder(z).view_as(x), mu, logvar


def bars(n, g):
    img = torch.zeros(n, 10, 10)
    row = torch.randint(9, (n,), generator=g)
    col = torch.randint(9, (n,), generator=g)
    k = torch.arange(n)
    for d in (0, 1):
        img[k, row + d, :] = 1.0
        img[k, :, col + d] = 1.0
    return img


def param_groups(model, lrs):
    groups = {k: [] for k in lrs}
    for name, p in model.named_parameters():
        top = name.split(".")[0]
        if top in groups:
            groups[top].append(p)
    return [{"params": ps, "lr": lrs[k], "name": k} for k, ps in groups.items() if ps]


def elbo(x, out, mu, logvar, beta):
    rec = F.binary_cross_entropy_with_logits(out, x, reduction="sum") / len(x)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum() / len(x)
    return rec + beta * kl, rec, kl


def main(cfg):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(3)
    model = VAE(cfg["latent"])
    opt = torch.optim.Adam(param_groups(model, cfg["lr"]))
    for step in range(1, cfg["steps"] + 1):
        model.train()
        x = bars(cfg["batch"], g)
        loss, rec, kl = elbo(x, *model(x), cfg["beta"])
        opt.zero_grad(set_to_none=True)
        model.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 50 == 0:
            model.eval()
            with torch.no_grad():
                xv = bars(256, g)
                _, vr, _ = elbo(xv, *model(xv), cfg["beta"])
            print(f"step {step} loss {loss.item():.2f} rec {rec.item():.2f} kl {kl.item():.2f} val_rec {vr.item():.2f}")


main(CONFIG)
