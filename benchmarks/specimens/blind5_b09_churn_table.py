import copy
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-b09-churn-table",
    "row": None,
    "title": "validation runs under no_grad but never switches to eval: dropout stays on and batch-norm uses (and learns) single-site batch statistics",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["model-left-in-train"],
    "bricks": [],
    "first_step": 39,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Settings:
    n_train: int = 5120
    n_val: int = 1200
    num_features: int = 12
    cat_sizes: tuple = (20, 12, 6)
    hidden: int = 96
    dropout: float = 0.4
    epochs: int = 8
    batch: int = 128
    lr: float = 2e-3
    history: list = field(default_factory=list)


def make_table(n, s, gen, coef):
    plan = torch.randint(0, 4, (n,), generator=gen)
    num = torch.randn(n, s.num_features, generator=gen)
    num[:, :4] += 2.0 * F.one_hot(plan, 4).float()
    cats = torch.stack([torch.randint(0, c, (n,), generator=gen) for c in s.cat_sizes], 1)
    shift = 0.4 * torch.sin(cats[:, 0].float())
    inter = num[:, 4] * num[:, 5]
    y = plan.clone()
    flip = (num[:, 6:] @ coef + shift + 0.5 * inter) > 1.2
    y[flip] = (y[flip] + 1) % 4
    return num, cats, y


class TabularNet(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(c, min(8, c // 2)) for c in s.cat_sizes)
        d = s.num_features + sum(e.embedding_dim for e in self.embeds)
        self.bn_in = nn.BatchNorm1d(s.num_features)
        self.body = nn.Sequential(
            nn.Linear(d, s.hidden), nn.BatchNorm1d(s.hidden), nn.ReLU(), nn.Dropout(s.dropout),
            nn.Linear(s.hidden, s.hidden), nn.BatchNorm1d(s.hidden), nn.ReLU(), nn.Dropout(s.dropout))
        self.out = nn.Linear(s.hidden, 4)

    def forward(self, num, cats):
        e = [emb(cats[:, i]) for i, emb in enumerate(self.embeds)]
        return self.out(self.body(torch.cat([self.bn_in(num)] + e, 1)))


class Experiment:
    def __init__(self, s):
        self.s = s
        torch.manual_seed(13)
        gen = torch.Generator().manual_seed(13)
        coef = torch.randn(s.num_features - 6, generator=gen) * 0.5
        self.train_set = make_table(s.n_train, s, gen, coef)
        num, cats, y = make_table(s.n_val, s, gen, coef)
        order = y.argsort()
        self.val_set = (num[order], cats[order], y[order])
        self.model = TabularNet(s)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=s.lr)
        self.best = (0.0, None)

    def fit(self):
        for epoch in range(self.s.epochs):
            self.model.train()
            losses = []
            for idx in torch.randperm(self.s.n_train).split(self.s.batch):
                num, cats, y = (t[idx] for t in self.train_set)
                loss = F.cross_entropy(self.model(num, cats), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                losses.append(loss.item())
            val_loss, val_acc = self.validate()
            if val_acc > self.best[0]:
                self.best = (val_acc, copy.deepcopy(self.model.state_dict()))
            self.s.history.append(val_acc)
            print(f"epoch {epoch} train {sum(losses) / len(losses):.4f} val {val_loss:.4f} acc {val_acc:.3f}")
        print("best accuracy", round(self.best[0], 3))

    @torch.no_grad()
    def validate(self):
        tot = hit = 0.0
        num, cats, y = self.val_set
        for i in range(0, len(y), 100):
            out = self.model(num[i:i + 100], cats[i:i + 100])
            tot += F.cross_entropy(out, y[i:i + 100], reduction="sum").item()
            hit += (out.argmax(1) == y[i:i + 100]).sum().item()
        return tot / len(y), hit / len(y)


if __name__ == "__main__":
    Experiment(Settings()).fit()
