import torch
import torch.nn as nn

TRUTH = {
    "id": "blind5-a05-ncf",
    "row": None,
    "title": "Embedding.from_pretrained keeps its default freeze=True, so user and item tables never train",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["parameters-frozen"],
    "bricks": ["user_emb", "item_emb"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

torch.manual_seed(21)
N_USERS, N_ITEMS, DIM, LATENT = 300, 200, 24, 4
BATCH, EPOCHS = 256, 6


def synth_ratings(n):
    U = torch.randn(N_USERS, LATENT)
    V = torch.randn(N_ITEMS, LATENT)
    u = torch.randint(0, N_USERS, (n,))
    i = torch.randint(0, N_ITEMS, (n,))
    r = (U[u] * V[i]).sum(1) / LATENT ** 0.5
    return u, i, r + 0.1 * torch.randn(n)


def svd_like_init(rows, dim, scale=0.1):
    w = torch.randn(rows, dim)
    q, _ = torch.linalg.qr(w)
    return q * scale * rows ** 0.5


class NCF(nn.Module):
    """GMF + MLP towers over shared tables."""

    def __init__(self):
        super().__init__()
        self.user_emb = nn.Embedding.from_pretrained(svd_like_init(N_USERS, DIM))
        self.item_emb = nn.Embedding.from_pretrained(svd_like_init(N_ITEMS, DIM))
        self.mlp = nn.Sequential(nn.Linear(2 * DIM, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.out = nn.Linear(16 + DIM, 1)

    def forward(self, u, i):
        pu, qi = self.user_emb(u), self.item_emb(i)
        deep = self.mlp(torch.cat([pu, qi], -1))
        return self.out(torch.cat([deep, pu * qi], -1)).squeeze(-1)


users, items, ratings = synth_ratings(26000)
ratings = (ratings - ratings.mean()) / ratings.std()
n_tr = 22000
model = NCF()
opt = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-6)
steps_per_epoch = n_tr // BATCH
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=EPOCHS * steps_per_epoch)
print("params", sum(p.numel() for p in model.parameters()))

for ep in range(EPOCHS):
    order = torch.randperm(n_tr)
    total = 0.0
    model.train()
    for b in range(steps_per_epoch):
        idx = order[b * BATCH:(b + 1) * BATCH]
        pred = model(users[idx], items[idx])
        loss = nn.functional.mse_loss(pred, ratings[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        rmse = (model(users[n_tr:], items[n_tr:]) - ratings[n_tr:]).pow(2).mean().sqrt()
    print(f"[{ep}] train mse {total / steps_per_epoch:.4f}  test rmse {rmse:.4f}")
