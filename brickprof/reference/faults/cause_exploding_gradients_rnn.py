"""A recurrent cell written by hand, unrolled over 60 steps, whose recurrent matrix was scaled up "so that memory
lasts". The gradient grows by a factor with every time step, and nothing bounds it."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-exploding-gradients-rnn",
    "row": None,
    "title": "recurrent matrix with gain 1.9 over 60 steps",
    "family": "lstm",
    "kind": "numeric",
    "contracts": ["FALSIFY-ALBOR-002", "C-TRAINSTABLE-001", "C-CLIP-001"],
    "root_causes": ["exploding-gradients", "bad-initialisation"],
    "bricks": ["cell", "cell.recurrent", "cell.inputs"],
    "first_step": 0,
    "needs": "cpu",
}


class Cell(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.inputs = nn.Linear(inputs, hidden)
        self.recurrent = nn.Linear(hidden, hidden, bias=False)
        nn.init.orthogonal_(self.recurrent.weight, gain=1.9)

    def forward(self, x, h):
        return torch.relu(self.inputs(x) + self.recurrent(h))


class Sequence(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.hidden = hidden
        self.cell = Cell(3, hidden)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, x):
        h = x.new_zeros(len(x), self.hidden)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.readout(h)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(11)
    model = Sequence()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    while step < 60:
        x = torch.randn(8, 60, 3)
        y = x[:, -5:, 0].mean(dim=1, keepdim=True)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        optimizer.step()
        if step % 5 == 0 or step < 4:
            print(f"{step:3d} loss {loss.item():.4g} gradient norm {norm.item():.4g}")
        step += 1


if __name__ == "__main__":
    main()
