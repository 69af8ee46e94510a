"""The clip is computed on the host: every gradient is moved to the CPU, scaled there and moved back. A step makes two
transfers for each of its sixty parameters where it could do with three altogether."""

import sys

import torch
from torch import nn

TRUTH = {
    "id": "cause-extra-transfers-mlp",
    "row": None,
    "title": "gradients travel to the host and back",
    "family": "mlp",
    "kind": "performance",
    "contracts": ["C-GPUTRAIN-002", "C-GPUACCUM-001"],
    "root_causes": ["extra-transfers", "host-sync-in-loop"],
    "bricks": [],
    "first_step": 0,
    "needs": "gpu",
}


def clip_on_host(parameters, bound):
    gradients = [p.grad.cpu() for p in parameters]
    norm = torch.stack([g.norm() for g in gradients]).norm()
    factor = min(1.0, bound / (norm.item() + 1e-6))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad.copy_((gradient * factor).to("cuda"))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + 0.2 * self.linear(x).relu()


def main():
    if not torch.cuda.is_available():
        print("this script needs a GPU")
        sys.exit(0)

    torch.manual_seed(0)
    model = nn.Sequential(*(Residual(256) for _ in range(30))).cuda()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    for step in range(150):
        x = torch.randn(128, 256, device="cuda")
        loss = nn.functional.mse_loss(model(x), x.abs())
        optimizer.zero_grad()
        loss.backward()
        clip_on_host(parameters, 1.0)
        optimizer.step()
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
