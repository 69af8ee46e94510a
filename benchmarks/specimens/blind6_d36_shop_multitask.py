"""Click and basket-size prediction with sparse id embeddings and learned task weights."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind6-d36-shop-multitask",
    "title": "healthy two-task recommender, sparse embeddings with SparseAdam, learned uncertainty weights",
    "family": "mlp",
    "needs": "cpu",
    "trap": "total loss falls below zero, most embedding rows have no gradient in a step, two optimizers, rare positives, log-variance parameters drift steadily",
}
USERS, ITEMS, DIM = 400, 300, 8
g = torch.Generator().manual_seed(31)
pu, qi = torch.randn(USERS, 3, generator=g), torch.randn(ITEMS, 3, generator=g)


def events(n):
    u = torch.randint(0, USERS, (n,))
    i = (torch.rand(n) ** 1.5 * ITEMS).long()          # popular items are seen more often
    s = (pu[u] * qi[i]).sum(1)
    click = (torch.rand(n) < torch.sigmoid(1.5 * s - 1.5)).float()
    size = torch.tanh(s) + 0.05 * torch.randn(n)
    return u, i, click, size


class Shop(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM, sparse=True)
        self.item = nn.Embedding(ITEMS, DIM, sparse=True)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)
        self.trunk = nn.Sequential(nn.Linear(3 * DIM, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
        self.click, self.size = nn.Linear(24, 1), nn.Linear(24, 1)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, u, i):
        a, b = self.user(u), self.item(i)
        h = self.trunk(torch.cat([a, b, a * b], 1))
        return self.click(h).squeeze(1), self.size(h).squeeze(1)

    def loss(self, u, i, c, s):
        pc, ps = self(u, i)
        l1 = F.binary_cross_entropy_with_logits(pc, c)
        l2 = F.mse_loss(ps, s)
        lv = self.log_var
        total = torch.exp(-lv[0]) * l1 + 0.5 * torch.exp(-lv[1]) * l2 + 0.5 * lv.sum()
        return total, l1, l2


def auc(score, y):
    r = score.argsort().argsort().float() + 1
    p = y.sum()
    return ((r[y > 0].sum() - p * (p + 1) / 2) / (p * (len(y) - p))).item()


torch.manual_seed(40)
model = Shop()
tables = [model.user.weight, model.item.weight]
ids = {id(p) for p in tables}
dense = [p for p in model.parameters() if id(p) not in ids]
opts = [torch.optim.SparseAdam(tables, lr=3e-2), torch.optim.Adam(dense, lr=4e-3)]
STEPS = 500
scheds = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: 1.0 - 0.95 * s / STEPS) for o in opts]
val = events(4000)
for step in range(STEPS):
    total, l1, l2 = model.loss(*events(512))
    for o in opts:
        o.zero_grad()
    total.backward()
    for o, sc in zip(opts, scheds):
        o.step()
        sc.step()
    if (step + 1) % 100 == 0:
        model.eval()
        with torch.no_grad():
            pc, ps = model(val[0], val[1])
            print(f"{step + 1} total {total.item():+.3f} click {l1.item():.3f} size {l2.item():.3f} "
                  f"val auc {auc(pc, val[2]):.3f} val mse {F.mse_loss(ps, val[3]).item():.3f}")
        model.train()
