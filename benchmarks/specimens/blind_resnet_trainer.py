import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-resnet-trainer",
    "row": None,
    "title": "the periodic validation inside the epoch switches the model to eval and nothing switches it back: batch norm and dropout are off for the rest of training",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["model-left-in-eval"],
    "bricks": [],
    "first_step": 20,
    "needs": "cpu",
    "crashes": False,
}


class Basic(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.c1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(o)
        self.c2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(o)
        self.short = nn.Identity() if i == o and stride == 1 else nn.Conv2d(i, o, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)))
        return F.relu(self.b2(self.c2(y)) + self.short(x))


class TinyResNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.stage = nn.Sequential(Basic(12, 12), Basic(12, 24, 2), Basic(24, 24), Basic(24, 32, 2))
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        h = self.stage(self.stem(x)).mean((2, 3))
        return self.fc(self.drop(h))


def textures(n, seed):
    proto = torch.randn(10, 3, 12, 12, generator=torch.Generator().manual_seed(99))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (n,), generator=g)
    shift = torch.randint(0, 12, (n,), generator=g).tolist()
    x = torch.stack([proto[c].roll(s, -1) for c, s in zip(y.tolist(), shift)])
    return TensorDataset(x + 0.9 * torch.randn(x.shape, generator=g), y)


class Trainer:
    def __init__(self, model, train_ds, val_ds, lr=0.02, epochs=6, eval_every=20):
        self.model = model
        self.train_loader = DataLoader(train_ds, 32, shuffle=True, drop_last=True)
        self.val_loader = DataLoader(val_ds, 128)
        self.epochs, self.eval_every = epochs, eval_every
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, lr, total_steps=epochs * len(self.train_loader))
        self.step = 0

    def validate(self):
        self.model.eval()
        loss = hits = n = 0
        with torch.no_grad():
            for x, y in self.val_loader:
                out = self.model(x)
                loss += F.cross_entropy(out, y, reduction="sum").item()
                hits += (out.argmax(1) == y).sum().item()
                n += len(y)
        return loss / n, hits / n

    def fit(self):
        self.model.train()
        for epoch in range(self.epochs):
            for x, y in self.train_loader:
                loss = F.cross_entropy(self.model(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.sched.step()
                self.step += 1
                if self.step % self.eval_every == 0:
                    vl, va = self.validate()
                    print(f"epoch {epoch} step {self.step} train {loss.item():.4f} val {vl:.4f} acc {va:.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(TinyResNet(), textures(640, 0), textures(256, 1)).fit()
