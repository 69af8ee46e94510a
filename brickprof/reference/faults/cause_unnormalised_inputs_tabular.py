"""House prices from raw columns: square metres, a year, a unix time. The columns differ by nine orders of magnitude
and nobody scales them, so the first layer's gradients are enormous and nothing is learnt."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-unnormalised-inputs-tabular",
    "row": None,
    "title": "raw columns go into the network",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-INPUT-001", "C-TRAINSTABLE-001"],
    "root_causes": ["unnormalised-inputs"],
    "bricks": ["0"],
    "first_step": 0,
    "needs": "cpu",
}


def houses(count):
    area = 40 + 160 * torch.rand(count)
    year = 1900 + 120 * torch.rand(count)
    listed = 1.6e9 + 1e8 * torch.rand(count)
    price = 2.0 * (area - 120) / 46 + (year - 1960) / 35 + 0.1 * torch.randn(count)
    return torch.stack([area, year, listed], 1), price.unsqueeze(1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = houses(800)
    loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(12):
        total = 0.0
        for features, price in loader:
            loss = nn.functional.mse_loss(model(features), price)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: mse {total / len(loader):.4g}")


if __name__ == "__main__":
    main()
