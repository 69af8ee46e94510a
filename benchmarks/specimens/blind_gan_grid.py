import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-gan-grid",
    "row": None,
    "title": "the discriminator's gradients are never cleared: the generator's optimizer is zeroed in both halves of the loop",
    "family": "gan",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["missing-zero-grad"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
    "crashes": False,
}

Z = 8


def real_batch(n):
    c = torch.randint(0, 3, (n, 2)).float() - 1.0
    return 1.5 * c + 0.08 * torch.randn(n, 2)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(Z, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 2))

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


class GANTrainer:
    def __init__(self, lr=1e-3, batch=128):
        self.G, self.D = Generator(), Discriminator()
        self.g_opt = torch.optim.Adam(self.G.parameters(), lr=lr, betas=(0.5, 0.99))
        self.d_opt = torch.optim.Adam(self.D.parameters(), lr=lr, betas=(0.5, 0.99))
        self.batch = batch

    def d_step(self):
        self.g_opt.zero_grad()
        real = real_batch(self.batch)
        fake = self.G(torch.randn(self.batch, Z)).detach()
        loss = F.softplus(-self.D(real)).mean() + F.softplus(self.D(fake)).mean()
        loss.backward()
        self.d_opt.step()
        return loss.item()

    def g_step(self):
        self.g_opt.zero_grad()
        fake = self.G(torch.randn(self.batch, Z))
        for p in self.D.parameters():
            p.requires_grad_(False)
        loss = F.softplus(-self.D(fake)).mean()
        loss.backward()
        for p in self.D.parameters():
            p.requires_grad_(True)
        self.g_opt.step()
        return loss.item()

    @torch.no_grad()
    def quality(self):
        x = self.G(torch.randn(2000, Z))
        modes = torch.cartesian_prod(torch.arange(-1.0, 2.0), torch.arange(-1.0, 2.0)) * 1.5
        d, k = torch.cdist(x, modes).min(1)
        return d.mean().item(), (torch.bincount(k[d < 0.4], minlength=9) > 40).sum().item()

    def fit(self, iters=300):
        for i in range(iters):
            dl = self.d_step()
            gl = self.g_step()
            if i % 50 == 0 or i == iters - 1:
                d, m = self.quality()
                print(f"{i:4d} D {dl:.3f} G {gl:.3f} dist {d:.3f} modes {m}")


if __name__ == "__main__":
    torch.manual_seed(0)
    GANTrainer().fit()
