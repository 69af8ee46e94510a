"""A table with a few empty cells is read without filling them. The batch that holds the first of them has nan in its
features; the loss is nan in that step and every weight after it."""

import io

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-data-nonfinite-tabular",
    "row": None,
    "title": "empty cells become nan",
    "family": "mlp",
    "kind": "numeric",
    "contracts": ["C-INPUT-001", "C-TRAINSTABLE-001"],
    "root_causes": ["data-nonfinite"],
    "bricks": [],
    "first_step": 35,
    "needs": "cpu",
}


def write_csv(rows=1600):
    generator = np.random.default_rng(0)
    lines = ["age,height,weight,score"]
    for number in range(rows):
        a, b, c = generator.normal(size=3)
        weight = "" if number in (1130, 1402) else f"{c:.4f}"
        lines.append(f"{a:.4f},{b:.4f},{weight},{a - 0.5 * b + 0.3 * c:.4f}")
    return io.StringIO("\n".join(lines))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = np.genfromtxt(write_csv(), delimiter=",", skip_header=1, dtype=np.float32)
    data = TensorDataset(torch.from_numpy(table[:, :3]), torch.from_numpy(table[:, 3:]))
    loader = DataLoader(data, batch_size=32)
    model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    step = 0
    for epoch in range(3):
        for features, score in loader:
            loss = nn.functional.mse_loss(model(features), score)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0 or 33 <= step <= 37:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
