"""Two tasks share a trunk; learnt weights balance their losses, so that the total may become negative."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "multi-task",
    "title": "two heads, losses balanced by learnt weights",
    "family": "mlp",
    "trap": "the total loss falls below zero; in some batches one head has no labels and so no gradient",
    "needs": "cpu",
}


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.number, self.label = nn.Linear(48, 1), nn.Linear(48, 3)
        self.log_variance = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        features = self.trunk(x)
        return self.number(features).squeeze(1), self.label(features)


def total(model, x, number, label, has_label):
    said, logits = model(x)
    parts = [F.mse_loss(said, number)]
    if has_label:
        parts.append(F.cross_entropy(logits, label))
    return sum(part * torch.exp(-model.log_variance[i]) + 0.5 * model.log_variance[i] for i, part in enumerate(parts))


torch.set_num_threads(1)
torch.manual_seed(0)
model = Shared()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
for step in range(240):
    x = torch.randn(48, 8)
    number = x[:, 0] * x[:, 1] + 0.1 * torch.randn(48)
    label = x[:, 2:5].argmax(1)
    loss = total(model, x, number, label, has_label=step % 4 != 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():+.4f}")
