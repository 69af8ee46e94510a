"""A small convolutional GAN with the hinge loss and spectral normalisation. The critic's loss touches exact zeros."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

TRUTH = {
    "id": "gan-hinge-spectral",
    "title": "hinge loss, spectral norm, pictures",
    "family": "gan",
    "trap": "weights that are computed from other weights; a hinge that gives no gradient for easy samples",
    "needs": "cpu",
}


class Painter(nn.Module):
    def __init__(self):
        super().__init__()
        self.seed = nn.Linear(8, 16 * 4 * 4)
        self.up = nn.Sequential(
            nn.BatchNorm2d(16), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(16, 8, 3, padding=1),
            nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, z):
        return self.up(self.seed(z).view(-1, 16, 4, 4))


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = spectral_norm(nn.Conv2d(1, 16, 3, stride=2, padding=1))
        self.again = spectral_norm(nn.Conv2d(16, 16, 3, stride=2, padding=1))
        self.say = spectral_norm(nn.Linear(64, 1))

    def forward(self, x):
        x = F.leaky_relu(self.look(x), 0.1)
        return self.say(F.leaky_relu(self.again(x), 0.1).flatten(1))


def stripes(count):
    phase = 6.28 * torch.rand(count, 1, 1, 1)
    return torch.sin(torch.arange(8.0).view(1, 1, 1, 8) * 1.5 + phase).expand(count, 1, 8, 8) * 0.9


torch.set_num_threads(1)
torch.manual_seed(0)
painter, judge = Painter(), Judge()
paint = torch.optim.Adam(painter.parameters(), lr=1e-3, betas=(0.0, 0.9))
tell = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.0, 0.9))
step = 0
while step < 100:
    fake = painter(torch.randn(32, 8))
    tell.zero_grad()
    judged = F.relu(1 - judge(stripes(32))).mean() + F.relu(1 + judge(fake.detach())).mean()
    judged.backward()
    tell.step()
    paint.zero_grad()
    painted = -judge(fake).mean()
    painted.backward()
    paint.step()
    if step % 20 == 0:
        print(f"{step}: judge {judged.item():.3f} painter {painted.item():+.3f}")
    step += 1
