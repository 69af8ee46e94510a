"""A Wasserstein GAN with gradient penalty: five critic updates for each of the generator, losses of either sign."""

import torch
from torch import nn

TRUTH = {
    "id": "gan-wasserstein-penalty",
    "title": "Wasserstein losses, gradient penalty, five critic steps",
    "family": "gan",
    "trap": "negative losses without a floor; a gradient of a gradient; one optimizer steps five times as often",
    "needs": "cpu",
}


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, z):
        return self.net(z)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x)


def penalty(critic, real, fake):
    mix = torch.rand(len(real), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((slope.norm(dim=1) - 1) ** 2).mean()


def moons(count):
    angle = torch.pi * torch.rand(count)
    upper = torch.rand(count) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x, y], 1) + 0.05 * torch.randn(count, 2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(2)
    generator, critic = Generator(), Critic()
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.9))
    for step in range(70):
        for _ in range(5):
            data = moons(64)
            with torch.no_grad():
                fake = generator(torch.randn(64, 6))
            opt_c.zero_grad()
            critic_loss = critic(fake).mean() - critic(data).mean() + 10 * penalty(critic, data, fake)
            critic_loss.backward()
            opt_c.step()
        opt_g.zero_grad()
        loss = -critic(generator(torch.randn(64, 6))).mean()
        loss.backward()
        opt_g.step()
        if step % 10 == 0:
            print(f"step {step} critic {critic_loss.item():+.4f} generator {loss.item():+.4f}")
