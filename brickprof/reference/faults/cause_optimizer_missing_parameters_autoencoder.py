"""An autoencoder whose optimizer is built from encoder.parameters() alone. The decoder gets gradients in every step
and keeps its first weights."""

import torch
from torch import nn
from torch.utils.data import DataLoader

TRUTH = {
    "id": "cause-optimizer-missing-parameters-autoencoder",
    "row": None,
    "title": "the optimizer owns the encoder only",
    "family": "other",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001", "C-HYPERPARAMS-001"],
    "root_causes": ["optimizer-missing-parameters"],
    "bricks": ["decoder", "decoder.0", "decoder.2"],
    "first_step": 0,
    "needs": "cpu",
}


class Autoencoder(nn.Module):
    def __init__(self, inputs=20, code=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.ReLU(), nn.Linear(32, inputs))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(2)
    data = torch.randn(1024, 4) @ torch.randn(4, 20)
    loader = DataLoader(data, batch_size=64, shuffle=True)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.encoder.parameters(), lr=5e-3)
    for epoch in range(15):
        for x in loader:
            loss = nn.functional.mse_loss(model(x), x)
            model.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 3 == 0:
            print(f"epoch {epoch}: reconstruction {loss.item():.4f}")


if __name__ == "__main__":
    main()
