import torch
from torch import nn

TRUTH = {
    "id": "blind-adding",
    "row": None,
    "title": "identity-initialised ReLU recurrence over 100 steps: gradients grow by a factor per time step and nothing bounds them",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["exploding-gradients"],
    "bricks": ["cell"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

torch.manual_seed(7)
torch.set_num_threads(1)

T = 100
HIDDEN = 64
BATCH = 32
STEPS = 120


def adding_batch(n):
    values = torch.rand(n, T)
    marks = (torch.rand(n, T) < 0.02 + 0.2 * torch.rand(n, 1)).float()
    target = (values * marks).sum(1) / 3
    return torch.stack([values, marks], dim=-1), target


class Cell(nn.Module):
    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.inp = nn.Linear(n_in, n_hidden)
        self.rec = nn.Linear(n_hidden, n_hidden, bias=False)
        nn.init.eye_(self.rec.weight)
        nn.init.normal_(self.inp.weight, std=0.05)
        nn.init.zeros_(self.inp.bias)

    def forward(self, x, h):
        return torch.relu(self.inp(x) + self.rec(h))


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell(2, HIDDEN)
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self, x):
        h = x.new_zeros(x.size(0), HIDDEN)
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)
        return self.out(h).squeeze(-1)


net = Adder()
opt = torch.optim.SGD(net.parameters(), lr=0.003, momentum=0.9)

for step in range(STEPS):
    x, y = adding_batch(BATCH)
    loss = nn.functional.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in net.parameters()))
        print(f"step {step:4d}  mse {loss.item():10.4f}  |g| {norm.item():.3e}")

net.eval()
with torch.no_grad():
    x, y = adding_batch(512)
    print("test mse", nn.functional.mse_loss(net(x), y).item(), "variance of the target", y.var().item())
