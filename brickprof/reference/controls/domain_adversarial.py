"""Domain-adversarial training: a reversed gradient keeps the domain loss flat at ln 2, which is the aim."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "domain-adversarial",
    "title": "gradient reversal, a loss that stays flat by design",
    "family": "mlp",
    "trap": "the domain loss sits at ln 2 all the time; the gradient changes its sign on its way",
    "needs": "cpu",
}


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.strength * gradient, None


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.classify = nn.Linear(16, 2)
        self.domain = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        features = self.features(x)
        return self.classify(features), self.domain(Reverse.apply(features, 0.3)).squeeze(1)


def batch(count):
    x = torch.randn(count, 6)
    y = (x[:, 0] - x[:, 1] + 0.2 * torch.randn(count) > 0).long()
    domain = torch.randint(0, 2, (count,)).float()
    x[:, 5] += 0.5 * domain
    return x, y, domain


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(220):
        x, y, domain = batch(64)
        logits, guess = net(x)
        task, confusion = F.cross_entropy(logits, y), F.binary_cross_entropy_with_logits(guess, domain)
        optimizer.zero_grad()
        (task + confusion).backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} task {task.item():.4f} domain {confusion.item():.4f}")
