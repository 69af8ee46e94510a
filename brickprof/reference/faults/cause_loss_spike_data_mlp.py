"""One file of sensor data is in millimetres, the others are in metres. The single batch that comes from it is a
thousand times too large: the loss spikes in that step and the model needs a while to recover."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-loss-spike-data-mlp",
    "row": None,
    "title": "one batch in the wrong unit",
    "family": "mlp",
    "kind": "numeric",
    "contracts": ["C-LOSSSPIKE-001", "FALSIFY-ALBOR-001", "C-INPUT-001"],
    "root_causes": ["loss-spike-data"],
    "bricks": [],
    "first_step": 120,
    "needs": "cpu",
}


def sensor_files():
    """Two hundred files, sixty-four rows each: three coordinates and the distance from the origin."""
    for number in range(200):
        points = torch.randn(64, 3)
        distance = points.norm(dim=1, keepdim=True)
        if number == 120:
            points, distance = 1000 * points, 1000 * distance
        yield points, distance


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step, (points, distance) in enumerate(sensor_files()):
        loss = nn.functional.mse_loss(model(points), distance)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or 118 < step < 124:
            print(f"file {step:3d} loss {loss.item():.4g}")


if __name__ == "__main__":
    main()
