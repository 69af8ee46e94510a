TRUTH = {
    "id": "blind7-b11-feed-ranker",
    "row": None,
    "title": "click-through-rate feature is 0/0 for two items without impressions; the batch that holds them is NaN and so is everything after",
    "family": "mlp",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["data-nonfinite"],
    "bricks": [],
    "first_step": 41,
    "needs": "cpu",
    "crashes": False,
}
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class FeatureStore:
    def __init__(self, n_items, seed):
        rng = np.random.default_rng(seed)
        self.impr = rng.poisson(16.0, n_items).astype(np.float32)
        self.impr[rng.choice(n_items, 2, replace=False)] = 0
        quality = rng.beta(2, 5, n_items).astype(np.float32)
        self.clicks = rng.binomial(self.impr.astype(int), quality).astype(np.float32)
        self.age = rng.exponential(2.0, n_items).astype(np.float32)
        self.price = rng.lognormal(0, 0.5, n_items).astype(np.float32)
        self.topic = rng.normal(size=(n_items, 6)).astype(np.float32)
        self.quality = quality

    def matrix(self):
        with np.errstate(all="ignore"):
            ctr = self.clicks / self.impr
        cols = [ctr, np.log1p(self.impr) - 2.8, np.log1p(self.age), np.log(self.price)]
        return np.concatenate([np.stack(cols, 1), self.topic], 1)


class Ranker(nn.Module):
    def __init__(self, d_item, d_user):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(d_item + d_user + 6, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.score = nn.Linear(32, 1)
        self.dwell = nn.Linear(32, 1)

    def forward(self, user, item):
        u = user.unsqueeze(1).expand(-1, item.size(1), -1)
        z = self.shared(torch.cat([u, item, u * item[..., -6:]], -1))
        return self.score(z).squeeze(-1), self.dwell(z).squeeze(-1)


def sessions(store, n, slate, rng):
    ids = np.stack([rng.integers(0, len(store.price), slate) for _ in range(n)])
    users = rng.normal(size=(n, 6)).astype(np.float32)
    util = (users[:, None] * store.topic[ids]).sum(-1) * 0.6 + 4 * store.quality[ids] - 0.3 * np.log1p(store.age[ids])
    clicked = (util + rng.gumbel(size=util.shape) * 0.3).argmax(1)
    dwell = 0.5 * util + 0.1 * rng.normal(size=util.shape)
    return users, ids, clicked, dwell.astype(np.float32)


def main():
    torch.manual_seed(2)
    rng = np.random.default_rng(3)
    store = FeatureStore(30000, 4)
    X = torch.from_numpy(store.matrix())
    users, ids, clicked, dwell = map(torch.as_tensor, sessions(store, 9000, 8, rng))
    model = Ranker(X.size(1), 6)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    bs, step = 64, 0
    for epoch in range(3):
        perm = torch.randperm(len(ids))
        hits = n = 0
        for k in range(0, len(perm) - bs + 1, bs):
            b = perm[k:k + bs]
            s, d = model(users[b], X[ids[b]])
            list_loss = F.cross_entropy(s, clicked[b])
            dwell_loss = F.smooth_l1_loss(d, dwell[b])
            loss = list_loss + 0.5 * dwell_loss
            opt.zero_grad()
            loss.backward()
            opt.step()
            hits += (s.argmax(1) == clicked[b]).sum().item()
            n += bs
            if step % 25 == 0:
                print(f"step {step:3d} list {list_loss.item():.4f} dwell {dwell_loss.item():.4f}")
            step += 1
        print(f"== epoch {epoch} top-1 {hits / n:.3f}")


if __name__ == "__main__":
    main()
