"""Much weight decay on few samples with many inputs: it keeps the weights small, which is what decay is for."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "weight-decay-ridge",
    "title": "AdamW with a decay of 0.3 that helps",
    "family": "mlp",
    "trap": "the decay is thirty times the usual one and the training loss keeps off zero",
    "needs": "cpu",
}


def problem(count):
    x = torch.randn(count, 30)
    return x, (x[:, 0] + 0.5 * x[:, 1] + 0.3 * torch.randn(count) > 0).float()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*problem(300)), batch_size=30, shuffle=True)
    test_x, test_y = problem(500)
    model = nn.Sequential(nn.Linear(30, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.3)
    for epoch in range(20):
        model.train()
        for x, y in loader:
            loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 4 == 3:
            model.eval()
            with torch.no_grad():
                held_out = F.binary_cross_entropy_with_logits(model(test_x).squeeze(1), test_y)
            norm = sum(p.norm() ** 2 for p in model.parameters()).sqrt().item()
            print(f"epoch {epoch} train {loss.item():.4f} test {held_out.item():.4f} |w| {norm:.2f}")


if __name__ == "__main__":
    main()
