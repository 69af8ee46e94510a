"""A convolutional autoencoder takes the noise out of smooth pictures."""

import torch
from torch import nn

TRUTH = {
    "id": "autoencoder-denoise",
    "title": "convolutional autoencoder, L1 loss",
    "family": "cnn",
    "trap": "an L1 loss whose gradients keep their size near the optimum",
    "needs": "cpu",
}


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.SiLU(), nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.SiLU()
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 12, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1),
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


def smooth(count):
    y, x = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    direction = torch.randn(count, 2, 1, 1)
    phase = 6.28 * torch.rand(count, 1, 1)
    return torch.sin(2 * (direction[:, 0] * x + direction[:, 1] * y) + phase).unsqueeze(1)


def main(steps=120):
    torch.manual_seed(0)
    model = Denoiser()
    optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3)
    for step in range(steps):
        clean = smooth(24)
        loss = nn.functional.l1_loss(model(clean + 0.3 * torch.randn_like(clean)), clean)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:3d} | l1 {loss.item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
