"""A variational autoencoder that predicts a variance directly through ReLU and takes its log for the KL term. A
variance of exactly zero gives log 0: the loss is inf from the first step on."""

import torch
from torch import nn
from torch.utils.data import DataLoader

TRUTH = {
    "id": "cause-log-of-zero-vae",
    "row": None,
    "title": "log of a variance that ReLU made zero",
    "family": "other",
    "kind": "numeric",
    "contracts": ["C-TRAINSTABLE-001"],
    "root_causes": ["log-of-zero"],
    "bricks": ["variance"],
    "first_step": 0,
    "needs": "cpu",
}


class VAE(nn.Module):
    def __init__(self, inputs=16, code=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 48), nn.Tanh())
        self.mean = nn.Linear(48, code)
        self.variance = nn.Sequential(nn.Linear(48, code), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(code, 48), nn.Tanh(), nn.Linear(48, inputs))

    def forward(self, x):
        h = self.body(x)
        mean, variance = self.mean(h), self.variance(h)
        z = mean + torch.randn_like(mean) * torch.sqrt(variance + 1e-8)
        kl = 0.5 * (mean**2 + variance - torch.log(variance) - 1).sum(1).mean()
        return self.decoder(z), kl


def train(model, loader, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        for x in loader:
            output, kl = model(x)
            loss = nn.functional.mse_loss(output, x) + 0.01 * kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f} kl {kl.item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1)
    data = torch.tanh(torch.randn(800, 3) @ torch.randn(3, 16))
    train(VAE(), DataLoader(data, batch_size=40, shuffle=True), epochs=8)
