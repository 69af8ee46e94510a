# Texture classification; one folder (here: one TensorDataset) per class.
import torch
import torch.nn as nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

TRUTH = {
    "id": "blind-texture-folder",
    "row": None,
    "title": "per-class datasets are concatenated and the train loader has no shuffle, so batches come class after class",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["data-not-shuffled"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

CLASSES = ["bark", "brick", "cloth", "grass", "sand", "water"]


def load_folder(name, count, seed):
    k = CLASSES.index(name)
    g = torch.Generator().manual_seed(seed * 100 + k)
    yy, xx = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")
    theta = k * 3.1416 / len(CLASSES) + 0.1 * torch.randn(count, 1, 1, generator=g)
    phase = 6.28 * torch.rand(count, 1, 1, generator=g)
    img = torch.sin(1.1 * (xx * theta.cos() + yy * theta.sin()) + phase) + 0.8 * torch.randn(count, 20, 20, generator=g)
    return TensorDataset(img.unsqueeze(1), torch.full((count,), k))


def build_loaders(per_class, batch_size):
    train = ConcatDataset([load_folder(c, per_class, 1) for c in CLASSES])
    val = ConcatDataset([load_folder(c, 50, 2) for c in CLASSES])
    train_loader = DataLoader(train, batch_size=batch_size, drop_last=True)
    val_loader = DataLoader(val, batch_size=100)
    return train_loader, val_loader


class TextureNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.gn1, self.gn2 = nn.GroupNorm(4, 16), nn.GroupNorm(4, 32)
        self.fc = nn.Linear(32, n_classes)

    def forward(self, x):
        x = self.pool(torch.relu(self.gn1(self.conv1(x))))
        x = self.pool(torch.relu(self.gn2(self.conv2(x))))
        return self.fc(x.mean(dim=(2, 3)))


def evaluate(model, loader):
    model.eval()
    correct = torch.zeros(len(CLASSES))
    count = torch.zeros(len(CLASSES))
    with torch.no_grad():
        for x, y in loader:
            ok = (model(x).argmax(1) == y).float()
            correct.index_add_(0, y, ok)
            count.index_add_(0, y, torch.ones_like(ok))
    model.train()
    return correct / count


def main(epochs=6, batch_size=32, lr=2e-3):
    torch.manual_seed(8)
    train_loader, val_loader = build_loaders(200, batch_size)
    model = TextureNet(len(CLASSES))
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * len(train_loader))
    crit = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        losses = []
        for x, y in train_loader:
            opt.zero_grad()
            loss = crit(model(x), y)
            loss.backward()
            opt.step()
            sched.step()
            losses.append(loss.item())
        acc = evaluate(model, val_loader)
        print(
            f"epoch {epoch}: loss min {min(losses):.3f} mean {sum(losses) / len(losses):.3f} max {max(losses):.3f} "
            f"| val {acc.mean():.3f} per class {[round(a, 2) for a in acc.tolist()]}"
        )


if __name__ == "__main__":
    main()
