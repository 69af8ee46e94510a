import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind4-heartbeats",
    "title": "Recordings are stored class after class and the training loader does not shuffle, so every batch holds one class and the loss is a sawtooth.",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["data-not-shuffled"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Beats(Dataset):
    KINDS = ("normal", "early", "wide", "flat")

    def __init__(self, per_kind, seed):
        rng = np.random.default_rng(seed)
        xs, ys = [], []
        t = np.linspace(0, 1, 28)
        for label, kind in enumerate(self.KINDS):
            for _ in range(per_kind):
                c = 0.5 + rng.normal(0, 0.03)
                w, a = 0.04, 1.0
                if kind == "early":
                    c -= 0.15
                elif kind == "wide":
                    w = 0.09
                elif kind == "flat":
                    a = 0.5
                beat = a * np.exp(-((t - c) / w) ** 2) + 0.2 * np.exp(-((t - c - 0.25) / 0.08) ** 2)
                xs.append(beat + 0.08 * rng.normal(size=t.size))
                ys.append(label)
        x = np.stack(xs)
        self.x = torch.tensor((x - x.mean()) / x.std(), dtype=torch.float32).unsqueeze(-1)
        self.y = torch.tensor(ys)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class GRUClassifier(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(2 * hidden)
        self.fc = nn.Linear(2 * hidden, 4)

    def forward(self, x):
        h, _ = self.gru(x)
        return self.fc(self.norm(h.mean(1)))


class Trainer:
    def __init__(self, model, train, val, lr=2e-3):
        self.model = model
        self.train_loader = DataLoader(train, batch_size=32, drop_last=True, num_workers=0)
        self.val_loader = DataLoader(val, batch_size=128)
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.loss_fn = nn.CrossEntropyLoss()

    def fit(self, epochs):
        for e in range(epochs):
            self.model.train()
            curve = []
            for x, y in self.train_loader:
                self.opt.zero_grad()
                loss = self.loss_fn(self.model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
                self.opt.step()
                curve.append(loss.item())
            print(f"epoch {e}: loss mean {np.mean(curve):.3f} max {max(curve):.3f} min {min(curve):.3f} val acc {self.score():.3f}")

    @torch.no_grad()
    def score(self):
        self.model.eval()
        ok = sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.val_loader)
        return ok / len(self.val_loader.dataset)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(12)
    Trainer(GRUClassifier(), Beats(256, 0), Beats(60, 1)).fit(4)
