import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-tag-cnn",
    "row": None,
    "title": "the rare-class prior bias (-4.6) meant for the last layer is set on every layer, all hidden ReLUs are dead",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["dead-activations", "bad-initialisation"],
    "bricks": ["backbone.0", "backbone.1"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

PRIOR = 0.01


class TagNet(nn.Module):
    def __init__(self, n_tags):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 16, 64),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(64, n_tags)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            m.weight.data.mul_(0.5)
            nn.init.constant_(m.bias, -math.log((1 - PRIOR) / PRIOR))

    def forward(self, x):
        return self.classifier(self.backbone(x))


def focal(logits, target, gamma=2.0):
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p = torch.sigmoid(logits)
    pt = torch.where(target > 0.5, p, 1 - p)
    return (ce * (1 - pt) ** gamma).sum(1).mean()


def make(n, seed, n_tags=10):
    g = torch.Generator().manual_seed(seed)
    stamps = torch.randn(n_tags, 6, 6, generator=torch.Generator().manual_seed(42)).sign()
    y = (torch.rand(n, n_tags, generator=g) < 0.12).float()
    x = 0.3 * torch.randn(n, 16, 16, generator=g)
    for i, t in y.nonzero().tolist():
        r, c = (2 * t % 9 + torch.randint(0, 2, (1,), generator=g).item(), 3 * t % 10)
        x[i, r : r + 6, c : c + 6] += 1.2 * stamps[t]
    x = (x - x.mean()) / x.std()
    return TensorDataset(x.unsqueeze(1), y)


def main():
    torch.manual_seed(0)
    train = DataLoader(make(2560, 0), batch_size=64, shuffle=True)
    vx, vy = make(500, 1).tensors
    model = TagNet(10)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5 * len(train))
    for epoch in range(5):
        model.train()
        for i, (x, y) in enumerate(train):
            loss = focal(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            if i % 20 == 0:
                print(f"{epoch}:{i} loss {loss.item():.4f}")
        model.eval()
        with torch.no_grad():
            s = torch.sigmoid(model(vx))
            auc_like = (s[vy > 0.5].mean() - s[vy < 0.5].mean()).item()
        print(f"epoch {epoch} separation {auc_like:.4f}")


if __name__ == "__main__":
    main()
