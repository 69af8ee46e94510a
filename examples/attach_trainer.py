"""A trainer of one's own, watched from inside: two lines, and the same journal as `brickprof run` writes."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import brickprof


class Autoencoder(nn.Module):
    def __init__(self, inputs: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, 64), nn.GELU(), nn.Linear(64, code))
        self.decoder = nn.Sequential(nn.Linear(code, 64), nn.GELU(), nn.Linear(64, inputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(x))


class Trainer:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def fit(self, data: torch.Tensor, steps: int, batch: int) -> None:
        for step in range(steps):
            x = data[torch.randint(len(data), (batch,))]
            loss = F.mse_loss(self.model(x), x)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % 20 == 0 or step == steps - 1:
                print(f"step {step:4d}  loss {loss.item():.6f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", default="brickprof-runs")
    args = parser.parse_args()

    torch.manual_seed(0)
    data = (torch.randn(2000, 3) @ torch.randn(3, 20)).tanh()
    model = Autoencoder(inputs=20, code=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    with brickprof.attach(model, optimizer, out=args.out) as bp:
        Trainer(model, optimizer).fit(data, args.steps, args.batch)
    print(bp.diagnose())


if __name__ == "__main__":
    main()
