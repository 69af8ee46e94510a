import logging

import torch
import torch.nn as nn

TRUTH = {
    "id": "blind5-b06-implicit-mf",
    "row": None,
    "title": "hand-written binary cross-entropy takes log(1 - sigmoid(score)); confident scores saturate to 1 and 0 * log(0) gives NaN",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["log-of-zero"],
    "bricks": [],
    "first_step": 159,
    "needs": "cpu",
    "crashes": False,
}

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
log = logging.getLogger("mf")


class InteractionLog:
    """Users and items live in taste groups; a user clicks items of its own group."""

    def __init__(self, n_users=500, n_items=400, groups=8, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.ug = torch.randint(0, groups, (n_users,), generator=g)
        self.ig = torch.randint(0, groups, (n_items,), generator=g)
        self.n_users, self.n_items = n_users, n_items
        self.g = g

    def sample(self, n):
        u = torch.randint(0, self.n_users, (n,), generator=self.g)
        i = torch.randint(0, self.n_items, (n,), generator=self.g)
        pos_u = torch.randint(0, self.n_users, (n,), generator=self.g)
        pos_i = torch.randint(0, self.n_items, (n * 24,), generator=self.g).view(n, 24)
        hit = self.ig[pos_i] == self.ug[pos_u][:, None]
        pos_i = pos_i.gather(1, hit.float().argmax(1, keepdim=True)).squeeze(1)
        uu, ii = torch.cat([u, pos_u]), torch.cat([i, pos_i])
        y = (self.ug[uu] == self.ig[ii]).float()
        return uu, ii, y


class MatrixFactorisation(nn.Module):
    def __init__(self, n_users, n_items, dim=16):
        super().__init__()
        self.user = nn.Embedding(n_users, dim)
        self.item = nn.Embedding(n_items, dim)
        self.user_bias = nn.Embedding(n_users, 1)
        self.item_bias = nn.Embedding(n_items, 1)
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.1)
        for e in (self.user_bias, self.item_bias):
            nn.init.zeros_(e.weight)

    def forward(self, u, i):
        s = (self.user(u) * self.item(i)).sum(-1)
        return torch.sigmoid(s + self.user_bias(u)[:, 0] + self.item_bias(i)[:, 0])


def click_loss(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()


def accuracy(model, data):
    model.eval()
    with torch.no_grad():
        u, i, y = data.sample(2000)
        acc = ((model(u, i) > 0.5).float() == y).float().mean().item()
    model.train()
    return acc


def main(steps=450, batch=512, lr=0.1):
    torch.manual_seed(0)
    data = InteractionLog()
    model = MatrixFactorisation(data.n_users, data.n_items)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(steps):
        u, i, y = data.sample(batch)
        p = model(u, i)
        loss = click_loss(p, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 25 == 0:
            log.info("step %d loss %.5f acc %.3f", step + 1, loss.item(), accuracy(model, data))


if __name__ == "__main__":
    main()
