"""A quantising autoencoder rounds its code with torch.round and has no straight-through estimator. Rounding has a
zero derivative everywhere, so the encoder's gradients are exactly zero."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-no-gradient-path-round-autoencoder",
    "row": None,
    "title": "torch.round without a straight-through estimator",
    "family": "other",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001"],
    "root_causes": ["no-gradient-path"],
    "bricks": ["encoder", "encoder.0", "encoder.2"],
    "first_step": 0,
    "needs": "cpu",
}


class Quantiser(nn.Module):
    def forward(self, z):
        return torch.round(4 * torch.tanh(z)) / 4


class Codec(nn.Module):
    def __init__(self, width=16, code=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 48), nn.ELU(), nn.Linear(48, code))
        self.quantiser = Quantiser()
        self.decoder = nn.Sequential(nn.Linear(code, 48), nn.ELU(), nn.Linear(48, width))

    def forward(self, x):
        return self.decoder(self.quantiser(self.encoder(x)))


def signals(count, basis):
    return torch.tanh(torch.randn(count, len(basis))) @ basis


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(4)
    basis = torch.randn(5, 16)
    codec = Codec()
    optimizer = torch.optim.RMSprop(codec.parameters(), lr=1e-3)
    step = 0
    while step < 300:
        x = signals(64, basis)
        loss = nn.functional.mse_loss(codec(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            size = codec.encoder[0].weight.grad.abs().max().item()
            print(f"{step:4d} mse {loss.item():.4f} encoder max|g| {size:.1e}")
        step += 1
