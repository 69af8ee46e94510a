"""A per-sample normalisation is written as two nested Python loops over rows and column groups. One step makes
thousands of tiny tensor operations where three would do."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-launch-storm-mlp",
    "row": None,
    "title": "a Python loop over rows and groups",
    "family": "mlp",
    "kind": "performance",
    "contracts": ["C-BUDGET-001", "C-GPUTRAIN-002"],
    "root_causes": ["launch-storm"],
    "bricks": ["norm"],
    "first_step": 0,
    "needs": "cpu",
}


class GroupStandardise(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, x):
        rows = []
        for row in x:
            parts = []
            for part in row.chunk(self.groups):
                parts.append((part - part.mean()) / (part.std() + 1e-5))
            rows.append(torch.cat(parts))
        return torch.stack(rows)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 64)
        self.norm = GroupStandardise(8)
        self.outer = nn.Linear(64, 3)

    def forward(self, x):
        return self.outer(torch.relu(self.norm(self.inner(x))))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    axes = torch.randn(16, 3)
    for step in range(40):
        x = torch.randn(32, 16)
        loss = nn.functional.cross_entropy(net(x), (x @ axes).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 6 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
