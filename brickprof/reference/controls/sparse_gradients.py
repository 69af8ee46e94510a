"""A recommender with sparse embedding gradients: SparseAdam for the two tables, Adam for the dense rest."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "sparse-gradients",
    "title": "sparse embeddings, most rows untouched in a step",
    "family": "other",
    "trap": "gradients are sparse tensors; most rows of a table do not move in a step",
    "needs": "cpu",
}
USERS, ITEMS, WIDTH = 80, 60, 8


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH, sparse=True)
        self.items = nn.Embedding(ITEMS, WIDTH, sparse=True)
        nn.init.normal_(self.users.weight, std=0.4)
        nn.init.normal_(self.items.weight, std=0.4)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, user, item):
        return self.mix(self.users(user) * self.items(item)).squeeze(1)


class Taste:
    def __init__(self):
        self.user, self.item = torch.randn(USERS, 3), torch.randn(ITEMS, 3)

    def sample(self, count):
        user, item = torch.randint(0, USERS, (count,)), torch.randint(0, ITEMS, (count,))
        return user, item, ((self.user[user] * self.item[item]).sum(1) > 0).float()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    taste, model = Taste(), Recommender()
    tables = torch.optim.SparseAdam([model.users.weight, model.items.weight], lr=2e-2)
    dense = torch.optim.Adam(model.mix.parameters(), lr=5e-3)
    for step in range(250):
        user, item, liked = taste.sample(128)
        loss = F.binary_cross_entropy_with_logits(model(user, item), liked)
        tables.zero_grad()
        dense.zero_grad()
        loss.backward()
        tables.step()
        dense.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
