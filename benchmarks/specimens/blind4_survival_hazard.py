import argparse
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

TRUTH = {
    "id": "blind4-survival_hazard",
    "title": "The discrete-time survival likelihood takes log(1 - hazard) of a hazard that reaches exactly 1 in float32, so a masked log(0) turns the loss to NaN after good training.",
    "family": "mlp",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["log-of-zero"],
    "bricks": [],
    "first_step": 38,
    "needs": "cpu",
    "crashes": False,
}


def make_cohort(n, n_cov, n_bins, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, n_cov)).astype(np.float32)
    score = 1.4 * x[:, 0] - 0.9 * x[:, 1] + 0.5 * x[:, 2] * x[:, 3]
    edges = np.quantile(score, np.linspace(0, 1, n_bins + 1)[1:-1])
    t = n_bins - 1 - np.digitize(score, edges)
    cens = rng.random(n) < 0.15
    t = np.where(cens, np.maximum(t - rng.integers(0, 3, size=n), 0), t)
    return x, t.astype(np.int64), (~cens).astype(np.float32)


class Cohort(Dataset):
    def __init__(self, x, t, e):
        self.x, self.t, self.e = map(torch.as_tensor, (x, t, e))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.t[i], self.e[i]


class ResidualFF(nn.Module):
    def __init__(self, d, p):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.fc1 = nn.Linear(d, 2 * d)
        self.fc2 = nn.Linear(2 * d, d)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return x + self.fc2(self.drop(torch.nn.functional.silu(self.fc1(self.norm(x)))))


class HazardNet(nn.Module):
    def __init__(self, n_cov, width, depth, n_bins):
        super().__init__()
        self.stem = nn.Linear(n_cov, width)
        self.blocks = nn.ModuleList(ResidualFF(width, 0.0) for _ in range(depth))
        self.out = nn.Linear(width, n_bins)

    def forward(self, x):
        h = self.stem(x)
        for b in self.blocks:
            h = b(h)
        return torch.sigmoid(self.out(h))


def survival_nll(hazard, t, event):
    bins = torch.arange(hazard.shape[1])
    at_event = (bins[None, :] == t[:, None]).float() * event[:, None]
    survived = (bins[None, :] < t[:, None]).float()
    ll = at_event * torch.log(hazard.clamp_min(1e-7)) + survived * torch.log(1.0 - hazard)
    return -ll.sum(1).mean()


def concordance(risk, t, e):
    i = (t[:, None] < t[None, :]) & (e[:, None] > 0)
    good = (risk[:, None] > risk[None, :]) & i
    return good.sum().item() / i.sum().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bins", type=int, default=12)
    ap.add_argument("--width", type=int, default=96)
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=11)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    x, t, e = make_cohort(2600, 10, args.bins, args.seed)
    train = Cohort(x[:2000], t[:2000], e[:2000])
    xv, tv, ev = (torch.as_tensor(a[2000:]) for a in (x, t, e))
    loader = DataLoader(train, batch_size=128, shuffle=True, generator=torch.Generator().manual_seed(args.seed))
    model = HazardNet(10, args.width, args.depth, args.bins)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    step = 0
    for epoch in range(args.epochs):
        model.train()
        tot = 0.0
        for xb, tb, eb in loader:
            loss = survival_nll(model(xb), tb, eb)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            tot += loss.item()
            step += 1
        model.eval()
        with torch.no_grad():
            hz = model(xv)
            risk = -torch.cumprod(1 - hz, 1).sum(1)
        print(f"epoch {epoch:02d} step {step} nll {tot / len(loader):.4f} c-index {concordance(risk, tv, ev):.3f}")


if __name__ == "__main__":
    main()
