"""To avoid many small allocations the moments of Adam are cut from one arena, which the initialisation had used as
scratch space before and nobody cleared. The first updates follow leftovers instead of gradients."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-optimizer-state-uninitialised-mlp",
    "row": None,
    "title": "Adam's moments start with leftovers",
    "family": "mlp",
    "kind": "numeric",
    "contracts": ["C-GPUINIT-001"],
    "root_causes": ["optimizer-state-uninitialised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Arena:
    """One flat buffer, handed out piece by piece."""

    def __init__(self, size):
        self.buffer = torch.empty(size)
        self.used = 0

    def take(self, like):
        piece = self.buffer[self.used : self.used + like.numel()].view_as(like)
        self.used += like.numel()
        return piece

    def reset(self):
        self.used = 0


def initialise(model, arena):
    for parameter in model.parameters():
        noise = arena.take(parameter).normal_()
        clipped = arena.take(parameter).copy_(noise).clamp_(-2, 2)
        parameter.data.copy_(clipped / parameter.shape[-1] ** 0.5)
    arena.reset()


def attach_moments(optimizer, arena):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": arena.take(parameter),
                "exp_avg_sq": arena.take(parameter).abs_(),
            }


def main():
    torch.set_num_threads(1)
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    arena = Arena(2 * sum(p.numel() for p in model.parameters()))
    initialise(model, arena)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    attach_moments(optimizer, arena)
    weights = torch.randn(12, 1)
    for step in range(200):
        x = torch.randn(64, 12)
        loss = nn.functional.mse_loss(model(x), torch.tanh(x @ weights))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step < 5:
            print(f"{step:4d} {loss.item():.4f}")


if __name__ == "__main__":
    main()
