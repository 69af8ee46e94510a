"""The embedding and the rest have an optimizer each; the embedding's takes a step only every second time."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "two-optimizers",
    "title": "two optimizers, one of which steps every second time",
    "family": "other",
    "trap": "some parameters move only in every second step, on gradients gathered over two",
    "needs": "cpu",
}
WORDS = 40


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.mix = nn.Conv1d(16, 32, 3, padding=1)
        self.tag = nn.Linear(32, 3)

    def forward(self, ids):
        x = F.relu(self.mix(self.embed(ids).transpose(1, 2)))
        return self.tag(x.transpose(1, 2))


def sentences(count):
    """A word's tag is decided by its own group and the one before it."""
    ids = torch.randint(0, WORDS, (count, 10))
    return ids, (ids % 3 + ids.roll(1, 1) % 2) % 3


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Tagger()
    slow = torch.optim.SGD(model.embed.parameters(), lr=1.0, momentum=0.9)
    fast = torch.optim.Adam([*model.mix.parameters(), *model.tag.parameters()], lr=5e-3)
    for step in range(200):
        ids, tags = sentences(32)
        loss = F.cross_entropy(model(ids)[:, 1:].flatten(0, 1), tags[:, 1:].flatten())
        fast.zero_grad()
        loss.backward()
        fast.step()
        if step % 2 == 1:
            slow.step()
            slow.zero_grad()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f}")
