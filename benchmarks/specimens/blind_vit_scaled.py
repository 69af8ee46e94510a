from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-vit-scaled",
    "row": None,
    "title": "the linear scaling rule multiplies the base rate by the batch size instead of batch size / 256, AdamW runs at 0.064",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["learning-rate-too-high"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Args:
    base_lr: float = 2e-3
    batch_size: int = 32
    epochs: int = 4
    weight_decay: float = 0.01
    dim: int = 48
    depth: int = 3


class Bars(Dataset):
    """16x16 images with a bar in one of 8 orientations/positions, plus noise"""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 8, (n,), generator=g)
        self.x = 0.5 * torch.randn(n, 1, 16, 16, generator=g)
        for i, c in enumerate(self.y.tolist()):
            k = (c % 4) * 4
            if c < 4:
                self.x[i, 0, k : k + 3] += 1.0
            else:
                self.x[i, 0, :, k : k + 3] += 1.0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class ViT(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.patch = nn.Conv2d(1, a.dim, 4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, a.dim))
        self.pos = nn.Parameter(torch.randn(1, 17, a.dim) * 0.02)
        layer = nn.TransformerEncoderLayer(a.dim, 4, 2 * a.dim, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, a.depth, enable_nested_tensor=False)
        self.head = nn.Linear(a.dim, 8)

    def forward(self, x):
        p = self.patch(x).flatten(2).transpose(1, 2)
        z = torch.cat([self.cls.expand(len(x), -1, -1), p], 1) + self.pos
        return self.head(self.enc(z)[:, 0])


def scaled_lr(a):
    return a.base_lr * a.batch_size


def main():
    a = Args()
    torch.manual_seed(2)
    train = DataLoader(Bars(1600, 0), a.batch_size, shuffle=True, drop_last=True)
    test = DataLoader(Bars(320, 1), 64)
    model = ViT(a)
    opt = torch.optim.AdamW(model.parameters(), lr=scaled_lr(a), weight_decay=a.weight_decay)
    crit = nn.CrossEntropyLoss()
    for ep in range(a.epochs):
        model.train()
        s = 0.0
        for x, y in train:
            loss = crit(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            s += loss.item()
        model.eval()
        ok = 0
        with torch.no_grad():
            for x, y in test:
                ok += (model(x).argmax(1) == y).sum().item()
        print(f"epoch {ep}: loss {s / len(train):.4f} acc {ok / 320:.3f}")


if __name__ == "__main__":
    main()
