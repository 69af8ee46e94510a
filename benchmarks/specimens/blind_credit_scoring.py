import contextlib
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

TRUTH = {
    "id": "blind-credit-scoring",
    "row": None,
    "title": "the evaluation context saves the mode after it has switched to eval, so training goes on in eval mode",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["model-left-in-eval"],
    "bricks": [],
    "first_step": 30,
    "needs": "cpu",
    "crashes": False,
}


@contextlib.contextmanager
def inference(model):
    model.eval()
    mode = model.training
    with torch.no_grad():
        yield model
    model.train(mode)


class ScoreNet(nn.Module):
    def __init__(self, d_in, width=256, depth=3, p=0.5):
        super().__init__()
        layers = []
        for i in range(depth):
            layers += [nn.Linear(d_in if i == 0 else width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(p)]
        self.trunk = nn.Sequential(*layers)
        self.score = nn.Linear(width, 1)

    def forward(self, x):
        return self.score(self.trunk(x)).squeeze(-1)


class Trainer:
    def __init__(self, model, train, val, lr, epochs):
        self.model, self.train_dl, self.val_dl, self.epochs = model, train, val, epochs
        self.crit = nn.BCEWithLogitsLoss()
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, epochs * len(train))

    def evaluate(self):
        n = loss = hit = 0
        with inference(self.model) as m:
            for x, y in self.val_dl:
                z = m(x)
                loss += self.crit(z, y).item() * len(y)
                hit += ((z > 0) == (y > 0.5)).sum().item()
                n += len(y)
        return loss / n, hit / n

    def fit(self):
        self.model.train()
        for epoch in range(self.epochs):
            seen = tot = 0
            for x, y in self.train_dl:
                self.opt.zero_grad()
                loss = self.crit(self.model(x), y)
                loss.backward()
                self.opt.step()
                self.sched.step()
                tot += loss.item() * len(y)
                seen += len(y)
            vl, va = self.evaluate()
            print(f"[{epoch}] train {tot / seen:.4f} val {vl:.4f} acc {va:.3f}")


def make_data(n=1360, d=40, seed=11):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g)
    w = torch.zeros(d)
    w[:6] = torch.tensor([1.2, -1.0, 0.8, 0.9, -0.7, 0.6])
    logit = x @ w + x[:, 0] * x[:, 1]
    y = (torch.rand(n, generator=g) < torch.sigmoid(1.5 * logit)).float()
    return TensorDataset(x, y)


if __name__ == "__main__":
    torch.manual_seed(0)
    tr, va = random_split(make_data(), [960, 400])
    model = ScoreNet(40)
    Trainer(model, DataLoader(tr, 32, shuffle=True), DataLoader(va, 200), lr=1e-3, epochs=12).fit()
