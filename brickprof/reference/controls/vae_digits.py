"""A variational autoencoder of small bar pictures. The KL term is weighted up over the first steps."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

TRUTH = {
    "id": "vae-digits",
    "title": "reconstruction and KL, annealed",
    "family": "other",
    "trap": "losses summed over pixels are large; the KL term rises while training goes well",
    "needs": "cpu",
}


class VAE(nn.Module):
    def __init__(self, pixels=64, hidden=64, latent=6):
        super().__init__()
        self.encode = nn.Linear(pixels, hidden)
        self.mean, self.logvar = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decode = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, pixels))

    def forward(self, x):
        h = F.relu(self.encode(x))
        mean, logvar = self.mean(h), self.logvar(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)
        return self.decode(z), mean, logvar


def bars(count):
    """The bars problem: any rows or columns may be on."""
    rows = (torch.rand(count, 8, 1) < 0.2).float()
    columns = (torch.rand(count, 1, 8) < 0.2).float()
    return torch.clamp(rows + columns, max=1).view(count, 64)


def elbo(out, x, mean, logvar, beta):
    reconstruction = F.binary_cross_entropy_with_logits(out, x, reduction="sum") / len(x)
    kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum() / len(x)
    return reconstruction + beta * kl, reconstruction, kl


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(bars(1024), batch_size=64, shuffle=True)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    step = 0
    for epoch in range(12):
        for x in loader:
            loss, reconstruction, kl = elbo(*_with(model, x), beta=min(1.0, step / 60))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        print(f"epoch {epoch}  elbo {loss.item():.2f}  reconstruction {reconstruction.item():.2f}  kl {kl.item():.2f}")


def _with(model, x):
    out, mean, logvar = model(x)
    return out, x, mean, logvar


if __name__ == "__main__":
    main()
