"""The learning rate starts at a thousandth of its value and LinearLR should raise it, but the loop never calls
scheduler.step(). The whole run is spent at the first warm-up rate."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-schedule-not-stepped-mlp",
    "row": None,
    "title": "scheduler.step() is never called",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-COSINE-001", "C-TRAINCFG-001"],
    "root_causes": ["schedule-not-stepped"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Experiment:
    def __init__(self, epochs=8):
        x = torch.randn(960, 10)
        y = (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] > 0).long()
        self.loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
        self.model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9, nesterov=True)
        updates = epochs * len(self.loader)
        warmup = LinearLR(self.optimizer, start_factor=1e-3, total_iters=updates // 10)
        cosine = CosineAnnealingLR(self.optimizer, T_max=updates - updates // 10)
        self.scheduler = SequentialLR(self.optimizer, [warmup, cosine], milestones=[updates // 10])
        self.epochs = epochs

    def train_one_epoch(self):
        total = 0.0
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.loader)

    def run(self):
        for epoch in range(self.epochs):
            loss = self.train_one_epoch()
            print(f"epoch {epoch} loss {loss:.4f} lr {self.optimizer.param_groups[0]['lr']:.6f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    Experiment().run()
