"""A run that is stopped at step 80 and resumed. Weights and moments come back, the step does not: warm-up and bias
correction begin again over old moments."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-092c",
    "row": 29,
    "title": "resume without the step: warm-up and bias correction restart",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-RESUME-001"],
    "root_causes": ["resume-state-lost"],
    "bricks": [],
    "first_step": 80,
    "needs": "cpu",
}

STEPS, WARMUP, STOP = 160, 20, 80


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(24, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.head = nn.Linear(64, 8)

    def forward(self, x):
        return self.head(self.trunk(x))


class Run:
    def __init__(self, folder):
        self.path = os.path.join(folder, "last.pt")
        torch.manual_seed(1)
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=4e-3, betas=(0.9, 0.98))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        self.step = 0

    @staticmethod
    def rate(step):
        if step < WARMUP:
            return (step + 1) / WARMUP
        return max(0.0, (STEPS - step) / (STEPS - WARMUP))

    def save(self):
        torch.save(
            {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}, self.path
        )

    def load(self):
        saved = torch.load(self.path, weights_only=True)
        self.net.load_state_dict(saved["model"])
        state = saved["optimizer"]
        for moments in state["state"].values():
            moments["step"] = torch.tensor(0.0)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def train(self, until, data):
        while self.step < until:
            x, y = next(data)
            loss = F.cross_entropy(self.net(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.step += 1
            if self.step % 10 == 0:
                print(f"step {self.step} loss {loss.item():.4f} lr {self.schedule.get_last_lr()[0]:.2e}")


def stream():
    generator = torch.Generator().manual_seed(0)
    labeller = torch.randn(24, 8, generator=generator)
    while True:
        x = torch.randn(32, 24, generator=generator)
        yield x, (x @ labeller).argmax(1)


def main():
    torch.set_num_threads(1)
    data = stream()
    with tempfile.TemporaryDirectory() as folder:
        first = Run(folder)
        first.train(STOP, data)
        first.save()
        second = Run(folder)
        second.load()
        second.train(STEPS - STOP, data)


if __name__ == "__main__":
    main()
