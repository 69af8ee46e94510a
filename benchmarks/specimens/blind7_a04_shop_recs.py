# Two-tower style recommender trained on an implicit feedback log
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind7-a04-shop-recs",
    "row": None,
    "title": "catalogue ids run from 1 to n_items but the table has n_items rows: the last item indexes past the end",
    "family": "other",
    "kind": "process",
    "contracts": [],
    "root_causes": ["out-of-bounds"],
    "bricks": ["item_vec"],
    "first_step": 236,
    "needs": "cpu",
    "crashes": True,
}

N_USERS, N_ITEMS, DIM = 800, 1500, 32


class ShopLog(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        taste = torch.randn(N_USERS, 6, generator=g)
        kind = torch.randn(N_ITEMS + 1, 6, generator=g)
        pop = 1.0 / torch.arange(1, N_ITEMS + 1).float() ** 1.05
        self.user = torch.randint(0, N_USERS, (n,), generator=g)
        self.item = torch.multinomial(pop, n, replacement=True, generator=g) + 1
        score = (taste[self.user] * kind[self.item]).sum(-1) * 0.5 + 2 * taste[self.user, 0] + 2 * kind[self.item, 0]
        self.clicked = (score + torch.randn(n, generator=g) > 0).float()

    def __len__(self):
        return len(self.user)

    def __getitem__(self, i):
        return self.user[i], self.item[i], self.clicked[i]


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user_vec = nn.Embedding(N_USERS, DIM)
        self.item_vec = nn.Embedding(N_ITEMS, DIM)
        self.mix = nn.Sequential(nn.Linear(3 * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i):
        a, b = self.user_vec(u), self.item_vec(i)
        return self.mix(torch.cat([a, b, a * b], -1)).squeeze(-1)


def main():
    torch.manual_seed(21)
    loader = DataLoader(ShopLog(40_000, 1), batch_size=64, shuffle=True)
    model = Recommender()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step, (u, i, c) in enumerate(loader):
        loss = F.binary_cross_entropy_with_logits(model(u, i), c)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0:
            print("step", step, "bce", round(loss.item(), 4), flush=True)


if __name__ == "__main__":
    main()
