"""Scratch space and Adam's moments are cut from one arena by as_strided views. The place of the activations is
reserved by their inputs and not by their outputs, so every write of them runs over into the moments that lie
behind."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-buffer-overflow-arena",
    "row": None,
    "title": "a view reaches into its neighbour",
    "family": "mlp",
    "kind": "numeric",
    "contracts": ["C-BUFSIZE-001", "C-GPUINIT-001"],
    "root_causes": ["buffer-overflow", "optimizer-state-uninitialised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Arena:
    def __init__(self, size):
        self.memory = torch.zeros(size, device=DEVICE)
        self.place = 0

    def view(self, shape, reserve):
        piece = torch.as_strided(self.memory, shape, (shape[1], 1), self.place)
        self.place += reserve
        return piece


def main():
    torch.set_num_threads(1)

    torch.manual_seed(0)
    first, second = nn.Linear(64, 256, bias=False).to(DEVICE), nn.Linear(256, 8, bias=False).to(DEVICE)
    arena = Arena(200_000)
    scratch = arena.view((256, 64), 256 * 64)
    activations = arena.view((64, 256), 64 * 64)
    moments = [arena.view((256, 64), 256 * 64), arena.view((256, 64), 256 * 64)]
    optimizer = torch.optim.Adam([first.weight, second.weight], lr=1e-3)
    optimizer.state[first.weight] = {
        "step": torch.tensor(0.0),
        "exp_avg": moments[0],
        "exp_avg_sq": moments[1],
    }
    target = torch.randn(64, 8, device=DEVICE)
    for step in range(120):
        x = torch.randn(64, 64, device=DEVICE)
        hidden = torch.relu(first(x))
        activations.copy_(hidden.detach())
        loss = nn.functional.mse_loss(second(hidden), x @ target / 8)
        optimizer.zero_grad()
        loss.backward()
        scratch.copy_(first.weight.grad)
        optimizer.step()
        if step % 12 == 0:
            print(f"step {step} loss {loss.item():.5f} largest activation {activations.max().item():.2f}")


if __name__ == "__main__":
    main()
