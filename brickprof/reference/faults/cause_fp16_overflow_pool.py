"""A half precision model for sets adds up the features of all members. Some batches hold sets of thousands: their sum
passes 65504, becomes inf in fp16, and the loss is nan."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-fp16-overflow-pool",
    "row": None,
    "title": "a sum overflows fp16",
    "family": "mlp",
    "kind": "numeric",
    "contracts": ["C-TRAINSTABLE-001"],
    "root_causes": ["fp16-overflow"],
    "bricks": ["pool", "norm"],
    "first_step": 40,
    "needs": "cpu",
}


class SumPool(nn.Module):
    def forward(self, x):
        return x.sum(dim=1)


class DeepSet(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(3, 32), nn.ReLU())
        self.pool = SumPool()
        self.norm = nn.LayerNorm(32)
        self.rho = nn.Linear(32, 2)

    def forward(self, points):
        return self.rho(self.norm(self.pool(self.phi(points))))


def clouds(size, members):
    """Clouds around one of two centres, in metres from the sensor."""
    labels = torch.randint(0, 2, (size,))
    centres = torch.tensor([[20.0, 5.0, 0.0], [5.0, 20.0, 0.0]])[labels]
    return (centres[:, None] + 4 * torch.randn(size, members, 3)).half(), labels


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DeepSet().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(60):
        members = 8000 if step == 40 else 200
        points, labels = clouds(8, members)
        loss = nn.functional.cross_entropy(model(points).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0 or step > 56:
            print(f"step {step} members {members} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
