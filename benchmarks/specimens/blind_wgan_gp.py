import math

import torch
import torch.nn as nn

TRUTH = {
    "id": "blind-wgan-gp",
    "title": "WGAN-GP on a ring of Gaussians, three critic steps per generator step",
    "family": "gan",
    "needs": "cpu",
    "trap": "negative, unbounded critic loss; second-order gradients; the critic steps three times as often",
}


def ring(n, k=8):
    a = 2 * math.pi * torch.randint(0, k, (n,)).float() / k
    return torch.stack([2 * a.cos(), 2 * a.sin()], 1) + 0.1 * torch.randn(n, 2)


def mlp(i, o, act):
    return nn.Sequential(nn.Linear(i, 96), act(), nn.Linear(96, 96), act(), nn.Linear(96, o))


def penalty(critic, real, fake):
    e = torch.rand(len(real), 1)
    mix = (e * real + (1 - e) * fake).requires_grad_(True)
    g = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)[0]
    return ((g.norm(2, dim=1) - 1) ** 2).mean()


def main():
    torch.manual_seed(0)
    gen, critic = mlp(6, 2, nn.ReLU), mlp(2, 1, nn.SiLU)
    g_opt = torch.optim.Adam(gen.parameters(), lr=2e-3, betas=(0.5, 0.9))
    c_opt = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
    for it in range(140):
        for _ in range(3):
            real = ring(128)
            with torch.no_grad():
                fake = gen(torch.randn(128, 6))
            c_loss = critic(fake).mean() - critic(real).mean() + 1.0 * penalty(critic, real, fake)
            c_opt.zero_grad()
            c_loss.backward()
            c_opt.step()
        critic.requires_grad_(False)
        g_loss = -critic(gen(torch.randn(128, 6))).mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
        critic.requires_grad_(True)
        if it % 20 == 0 or it == 139:
            with torch.no_grad():
                r = gen(torch.randn(1000, 6)).norm(dim=1)
            print(f"{it} critic {c_loss.item():+.3f} gen {g_loss.item():+.3f} radius {r.mean():.3f}+-{r.std():.3f}")


if __name__ == "__main__":
    main()
