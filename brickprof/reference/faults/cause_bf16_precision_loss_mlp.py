"""All weights are kept in bfloat16, and the updates of a small learning rate are below half the distance to the next
number. They round away: gradients flow, Adam works, and the weights do not move."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-bf16-precision-loss-mlp",
    "row": None,
    "title": "updates vanish in bfloat16 weights",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-PRECISION-001", "C-GRADFLOW-001", "FALSIFY-ALBOR-001", "C-LEARN-001"],
    "root_causes": ["bf16-precision-loss"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.hidden = nn.Linear(16, 128)
        self.out = nn.Linear(128, 4)
        for layer in (self.hidden, self.out):
            nn.init.orthogonal_(layer.weight, gain=2.0)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(self.norm(x))))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(7)
    means = torch.randn(4, 16)
    model = Classifier().to(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step in range(300):
        labels = torch.randint(0, 4, (64,))
        x = (means[labels] + 0.7 * torch.randn(64, 16)).to(torch.bfloat16)
        loss = nn.functional.cross_entropy(model(x).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"{step} {loss.item():.4f}")


if __name__ == "__main__":
    main()
