import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-textures",
    "row": None,
    "title": "Block.forward calls h.add(x) and drops the result: the skip connection is never there",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["residual-path-broken"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Textures(Dataset):
    """Gratings with one of six orientations, random phase and noise."""

    def __init__(self, n, size=12, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 6, (n,), generator=g)
        angle = self.y.float() * torch.pi / 6
        phase = torch.rand(n, generator=g) * 6.28
        yy, xx = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")
        u = xx[None] * torch.cos(angle)[:, None, None] + yy[None] * torch.sin(angle)[:, None, None]
        img = torch.sin(1.3 * u + phase[:, None, None])
        self.x = (img + 0.3 * torch.randn(n, size, size, generator=g)).unsqueeze(1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Block(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=1)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x):
        h = self.conv1(F.relu(x))
        h = self.conv2(F.relu(h))
        h.add(x)
        return h


class ResNet(nn.Module):
    def __init__(self, ch=16, n_blocks=10, n_classes=6):
        super().__init__()
        self.stem = nn.Conv2d(1, ch, 3, padding=1)
        self.blocks = nn.ModuleList([Block(ch) for _ in range(n_blocks)])
        self.fc = nn.Linear(ch, n_classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = F.relu(x).mean(dim=(2, 3))
        return self.fc(x)


def run_epoch(model, loader, optimizer=None):
    training = optimizer is not None
    model.train(training)
    total, right, seen = 0.0, 0, 0
    with torch.set_grad_enabled(training):
        for x, y in loader:
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(y)
            right += (logits.argmax(1) == y).sum().item()
            seen += len(y)
    return total / seen, right / seen


if __name__ == "__main__":
    torch.manual_seed(0)
    train_loader = DataLoader(Textures(1600, seed=1), batch_size=40, shuffle=True)
    test_loader = DataLoader(Textures(400, seed=2), batch_size=100)
    model = ResNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        tr = run_epoch(model, train_loader, optimizer)
        te = run_epoch(model, test_loader)
        print(f"[{epoch}] train loss {tr[0]:.4f} acc {tr[1]:.3f} | test loss {te[0]:.4f} acc {te[1]:.3f}")
