"""A siamese network takes the square root of a squared distance. A pair of identical items has distance 0, where the
derivative of the root is infinite: the loss stays finite and the gradient is nan."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-invalid-op-distance-mlp",
    "row": None,
    "title": "sqrt at zero in a contrastive loss",
    "family": "mlp",
    "kind": "numeric",
    "contracts": ["C-TRAINSTABLE-001"],
    "root_causes": ["invalid-op", "division-by-zero"],
    "bricks": [],
    "first_step": 25,
    "needs": "cpu",
}


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, a, b):
        return torch.sqrt(((self.tower(a) - self.tower(b)) ** 2).sum(dim=1))


def contrastive(distance, same, margin=2.0):
    pull = same * distance**2
    push = (1 - same) * torch.relu(margin - distance) ** 2
    return (pull + push).mean()


def pairs(items, groups, size):
    first = torch.randint(0, len(items), (size,))
    second = torch.randint(0, len(items), (size,))
    return items[first], items[second], (groups[first] == groups[second]).float()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    groups = torch.randint(0, 6, (600,))
    items = 2 * torch.randn(6, 10)[groups] + 0.5 * torch.randn(600, 10)
    model = Siamese()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(150):
        a, b, same = pairs(items, groups, 32)
        loss = contrastive(model(a, b), same)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{step:4d} {loss.item():.4f}")
