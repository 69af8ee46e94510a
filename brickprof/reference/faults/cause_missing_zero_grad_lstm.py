"""A sentiment GRU trained by SGD in a loop without zero_grad: every update applies the sum of all gradients so far.
The gradient norm grows from step to step and the loss swings ever wider."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-missing-zero-grad-lstm",
    "row": None,
    "title": "the loop never zeroes the gradients",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-GA-001", "C-TRAINSTABLE-001"],
    "root_causes": ["missing-zero-grad"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
}


class Sentiment(nn.Module):
    def __init__(self, words=50, dim=16, hidden=32):
        super().__init__()
        self.embedding = nn.Embedding(words, dim)
        self.gru = nn.GRU(dim, hidden, batch_first=True)
        self.classifier = nn.Linear(hidden, 2)

    def forward(self, ids):
        states, _ = self.gru(self.embedding(ids))
        return self.classifier(states.mean(1))


def reviews(count, length=12):
    """Words below 25 are friendly ones."""
    bias = torch.rand(count, 1)
    friendly = torch.rand(count, length) < bias
    ids = torch.where(friendly, torch.randint(0, 25, (count, length)), torch.randint(25, 50, (count, length)))
    return ids, (friendly.float().mean(1) > 0.5).long()


def train(steps=150):
    model = Sentiment()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.train()
    for step in range(steps):
        ids, labels = reviews(32)
        loss = nn.functional.cross_entropy(model(ids), labels)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            norm = sum(p.grad.pow(2).sum() for p in model.parameters()).sqrt()
            print(f"step {step} loss {loss.item():.4f} |g| {norm.item():.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train()
