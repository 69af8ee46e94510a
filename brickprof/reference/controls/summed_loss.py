"""The loss is a sum over samples and outputs, so it and its gradients are in the thousands, and the rate is small."""

import torch
from torch import nn

TRUTH = {
    "id": "summed-loss",
    "title": "losses in the thousands, by a sum and not a mean",
    "family": "mlp",
    "trap": "large losses and large gradients that are what a sum gives",
    "needs": "cpu",
}


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(10, 64)
        self.out = nn.Linear(64, 20)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


torch.set_num_threads(1)
torch.manual_seed(0)
mixing = torch.randn(10, 20)
model = Regression()
criterion = nn.MSELoss(reduction="sum")
optimizer = torch.optim.SGD(model.parameters(), lr=2e-5, momentum=0.9)
for step in range(250):
    x = torch.randn(128, 10)
    y = torch.sin(x) @ mixing + 0.3 * torch.randn(128, 20)
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.1f}")
