"""The gradients are unscaled by the scaler and then divided by its scale once more by hand. What SGD gets is 65536
times too small, and the model stands still."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-loss-scale-misused-twice-mlp",
    "row": None,
    "title": "gradients are unscaled twice",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-LOSSSCALE-001", "C-CLIP-001"],
    "root_causes": ["loss-scale-misused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    centres = 3 * torch.randn(5, 10)
    model = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    for step in range(200):
        labels = torch.randint(0, 5, (64,))
        x = centres[labels] + torch.randn(64, 10)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for parameter in model.parameters():
            parameter.grad.div_(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
