"""A GAN project with classes, configuration and samples. The discriminator's optimizer is built from the generator's
parameters, a copied line: the discriminator stays as it was initialised, whatever it is told."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-project-gan-wrong-optimizer",
    "row": None,
    "title": "the discriminator belongs to no optimizer",
    "family": "gan",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001", "C-HYPERPARAMS-001"],
    "root_causes": ["optimizer-missing-parameters"],
    "bricks": ["net", "net.0", "net.2", "net.4", "discriminator"],
    "first_step": 0,
    "needs": "cpu",
}


@dataclass
class Settings:
    noise: int = 8
    width: int = 64
    batch: int = 64
    steps: int = 250
    lr_g: float = 1e-3
    lr_d: float = 2e-3
    report: int = 25
    seed: int = 0


class Generator(nn.Module):
    def __init__(self, settings):
        super().__init__()
        w = settings.width
        self.body = nn.Sequential(nn.Linear(settings.noise, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 2))

    def forward(self, z):
        return self.body(z)


class Discriminator(nn.Module):
    def __init__(self, settings):
        super().__init__()
        w = settings.width
        self.net = nn.Sequential(
            nn.Linear(2, w), nn.LeakyReLU(0.2), nn.Linear(w, w), nn.LeakyReLU(0.2), nn.Linear(w, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


class Eight:
    """Eight small clouds on a circle."""

    def __init__(self):
        angles = torch.arange(8) * torch.pi / 4
        self.centres = 2 * torch.stack([angles.cos(), angles.sin()], 1)

    def sample(self, count):
        return self.centres[torch.randint(0, 8, (count,))] + 0.1 * torch.randn(count, 2)

    def distance(self, points):
        return torch.cdist(points, self.centres).min(dim=1).values.mean()


class Adversarial:
    def __init__(self, settings):
        self.settings = settings
        self.data = Eight()
        self.generator, self.discriminator = Generator(settings), Discriminator(settings)
        self.g_optimizer = torch.optim.Adam(self.generator.parameters(), lr=settings.lr_g, betas=(0.5, 0.999))
        self.d_optimizer = torch.optim.Adam(self.generator.parameters(), lr=settings.lr_d, betas=(0.5, 0.999))

    def fake(self):
        return self.generator(torch.randn(self.settings.batch, self.settings.noise))

    def discriminator_step(self):
        real, fake = self.data.sample(self.settings.batch), self.fake().detach()
        loss = F.softplus(-self.discriminator(real)).mean() + F.softplus(self.discriminator(fake)).mean()
        self.discriminator.zero_grad()
        loss.backward()
        self.d_optimizer.step()
        return loss.item()

    def generator_step(self):
        loss = F.softplus(-self.discriminator(self.fake())).mean()
        self.generator.zero_grad()
        loss.backward()
        self.g_optimizer.step()
        return loss.item()

    def train(self):
        for step in range(self.settings.steps):
            d_loss, g_loss = self.discriminator_step(), self.generator_step()
            if step % self.settings.report == 0:
                with torch.no_grad():
                    distance = self.data.distance(self.fake())
                print(f"step {step} D {d_loss:.4f} G {g_loss:.4f} distance {distance.item():.3f}")


if __name__ == "__main__":
    settings = Settings()
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    Adversarial(settings).train()
