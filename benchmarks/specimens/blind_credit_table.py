"""Default prediction on a table of loan applicants."""

from dataclasses import dataclass, field

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, random_split

TRUTH = {
    "id": "blind-credit-table",
    "row": None,
    "title": "raw columns (income, balance, zip code in the tens of thousands beside ratios in 0..1) go into the MLP unscaled",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["unnormalised-inputs"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    n_rows: int = 10000
    hidden: list = field(default_factory=lambda: [64, 64])
    batch_size: int = 128
    lr: float = 1e-3
    epochs: int = 5
    seed: int = 42


class Applicants(Dataset):
    columns = ["age", "income", "debt_ratio", "tenure_months", "postcode", "balance", "utilisation", "n_late"]

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        r = lambda: torch.randn(n, generator=g)
        u = lambda: torch.rand(n, generator=g)
        age = 18 + 60 * u()
        income = torch.exp(10.8 + 0.5 * r())
        debt = u()
        tenure = 240 * u()
        post = torch.randint(10000, 99999, (n,), generator=g).float()
        balance = torch.exp(9.0 + 0.9 * r())
        util = u()
        late = torch.poisson(1.5 * u() ** 2, generator=g)
        z = (
            4.0 * (debt - 0.5)
            + 3.0 * (util - 0.5)
            + 1.2 * late
            - 0.7
            - 2.0 * (income.log() - 10.8)
            + 0.6 * (balance.log() - 9.0)
            - 0.02 * (age - 48)
            + 3.0 * (debt - 0.5) * (util - 0.5)
        )
        self.x = torch.stack([age, income, debt, tenure, post, balance, util, late], 1)
        self.y = (torch.sigmoid(1.8 * z) > torch.rand(n, generator=g)).float()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class MLP(nn.Module):
    def __init__(self, d_in, hidden):
        super().__init__()
        dims = [d_in, *hidden]
        self.trunk = nn.Sequential(*[m for a, b in zip(dims, dims[1:]) for m in (nn.Linear(a, b), nn.ReLU())])
        self.head = nn.Linear(dims[-1], 1)

    def forward(self, x):
        return self.head(self.trunk(x)).squeeze(-1)


class Runner:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        full = Applicants(cfg.n_rows, cfg.seed)
        n_val = cfg.n_rows // 5
        train, val = random_split(full, [cfg.n_rows - n_val, n_val])
        self.train_loader = DataLoader(train, batch_size=cfg.batch_size, shuffle=True)
        self.val_loader = DataLoader(val, batch_size=512)
        self.model = MLP(len(Applicants.columns), cfg.hidden)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.loss_fn = nn.BCEWithLogitsLoss()

    def run_epoch(self):
        self.model.train()
        tot = n = 0
        for x, y in self.train_loader:
            loss = self.loss_fn(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            tot, n = tot + loss.item() * len(y), n + len(y)
        return tot / n

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        tot = hit = n = 0
        for x, y in self.val_loader:
            z = self.model(x)
            tot += self.loss_fn(z, y).item() * len(y)
            hit += ((z > 0).float() == y).sum().item()
            n += len(y)
        return tot / n, hit / n

    def fit(self):
        for ep in range(self.cfg.epochs):
            tr = self.run_epoch()
            vl, acc = self.evaluate()
            print(f"[{ep + 1}/{self.cfg.epochs}] train {tr:.4f} val {vl:.4f} acc {acc:.3f}")


if __name__ == "__main__":
    Runner(Config()).fit()
