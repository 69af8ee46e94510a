"""The detector ends in a sigmoid and its output goes to binary_cross_entropy_with_logits, which applies another one.
The loss cannot fall below about 0.5, however sure the detector is."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-loss-input-mismatch-sigmoid-bce",
    "row": None,
    "title": "sigmoid before BCE with logits",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-LOSSFN-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["loss-input-mismatch", "double-softmax"],
    "bricks": ["sigmoid"],
    "first_step": 0,
    "needs": "cpu",
}


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 32)
        self.score = nn.Linear(32, 1)
        self.sigmoid = nn.Sigmoid()

    def forward(self, x):
        return self.sigmoid(self.score(F.leaky_relu(self.hidden(x)))).squeeze(-1)


def sensor_readings(count):
    faulty = (torch.rand(count) < 0.5).float()
    readings = torch.randn(count, 8)
    readings[:, 0] += 3 * faulty
    readings[:, 3] -= 2 * faulty
    return readings, faulty


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    detector = Detector()
    optimizer = torch.optim.AdamW(detector.parameters(), lr=5e-3)
    for step in range(250):
        x, y = sensor_readings(48)
        loss = F.binary_cross_entropy_with_logits(detector(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}")
