import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-ratings",
    "row": None,
    "title": "total steps of the cosine computed from the number of samples, not of batches: the rate hardly decays",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["schedule-horizon-wrong"],
    "bricks": [],
    "first_step": 20,
    "needs": "cpu",
    "crashes": False,
}

N_USERS, N_ITEMS, RANK = 300, 200, 6
EPOCHS, BATCH, WARMUP = 5, 256, 20
LR = 0.05


def make_ratings(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    u_true = torch.randn(N_USERS, RANK, generator=g)
    v_true = torch.randn(N_ITEMS, RANK, generator=g)
    users = torch.randint(0, N_USERS, (n,), generator=g)
    items = torch.randint(0, N_ITEMS, (n,), generator=g)
    mean = (u_true[users] * v_true[items]).sum(1) / math.sqrt(RANK)
    return users, items, mean + 0.5 * torch.randn(n, generator=g)


class MatrixFactorisation(nn.Module):
    def __init__(self, n_users, n_items, dim=8):
        super().__init__()
        self.user = nn.Embedding(n_users, dim)
        self.item = nn.Embedding(n_items, dim)
        self.user_bias = nn.Embedding(n_users, 1)
        self.item_bias = nn.Embedding(n_items, 1)
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.3)
        for e in (self.user_bias, self.item_bias):
            nn.init.zeros_(e.weight)

    def forward(self, u, i):
        dot = (self.user(u) * self.item(i)).sum(-1)
        return dot + self.user_bias(u).squeeze(-1) + self.item_bias(i).squeeze(-1)


def warmup_cosine(optimizer, warmup, total):
    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, total - warmup)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))

    return LambdaLR(optimizer, factor)


def rmse(model, dataset):
    model.eval()
    with torch.no_grad():
        u, i, r = dataset.tensors
        return (model(u, i) - r).pow(2).mean().sqrt().item()


def main():
    torch.manual_seed(0)
    u, i, r = make_ratings(30000)
    train = TensorDataset(u[:26000], i[:26000], r[:26000])
    test = TensorDataset(u[26000:], i[26000:], r[26000:])
    loader = DataLoader(train, batch_size=BATCH, shuffle=True)

    model = MatrixFactorisation(N_USERS, N_ITEMS)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    scheduler = warmup_cosine(optimizer, WARMUP, total=EPOCHS * len(train))

    for epoch in range(EPOCHS):
        model.train()
        total = 0.0
        for users, items, ratings in loader:
            loss = nn.functional.mse_loss(model(users, items), ratings)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
        print(
            f"epoch {epoch}  train mse {total / len(loader):.4f}  test rmse {rmse(model, test):.4f}  "
            f"lr {scheduler.get_last_lr()[0]:.4f}"
        )


if __name__ == "__main__":
    main()
