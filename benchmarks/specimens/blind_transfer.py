"""Pretrain a small CNN on one task, then train a new head on its frozen features for another."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-transfer",
    "title": "linear probe on a pretrained, frozen backbone with early stopping",
    "family": "cnn",
    "needs": "cpu",
    "trap": "backbone frozen and in eval mode during training, its optimizer is gone, second phase ends early",
}


def patterns(n, seed):
    g = torch.Generator().manual_seed(seed)
    angle = torch.randint(0, 4, (n,), generator=g)
    freq = torch.randint(0, 2, (n,), generator=g)
    a, f = angle.float() * torch.pi / 4, 0.7 + 0.9 * freq.float()
    yy, xx = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
    u = xx * a.cos()[:, None, None] + yy * a.sin()[:, None, None]
    ph = 6.28 * torch.rand(n, 1, 1, generator=g)
    x = torch.sin(f[:, None, None] * u + ph) + 0.4 * torch.randn(n, 14, 14, generator=g)
    return x.unsqueeze(1), angle, freq * 2 + (angle >= 2).long()


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, x):
        return self.layers(x)


class Probe(nn.Module):
    def __init__(self, backbone, n_classes):
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        self.head = nn.Linear(32, n_classes)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


@torch.no_grad()
def score(model, x, y):
    model.eval()
    logits = model(x)
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


def fit(model, params, x, y, xv, yv, epochs, lr, patience=None):
    opt = torch.optim.AdamW(params, lr=lr)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    best, best_state, bad = float("inf"), None, 0
    for epoch in range(epochs):
        model.train()
        for xb, yb in loader:
            loss = F.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        val, acc = score(model, xv, yv)
        print(f"  epoch {epoch}: train {loss.item():.3f} val {val:.3f} acc {acc:.3f}")
        if val < best - 1e-2:
            best, best_state, bad = val, copy.deepcopy(model.state_dict()), 0
        else:
            bad += 1
            if patience is not None and bad >= patience:
                print("  early stop")
                break
    model.load_state_dict(best_state)


def main():
    torch.manual_seed(3)
    x, angle, other = patterns(2000, 1)
    xv, anglev, otherv = patterns(500, 2)
    backbone = Backbone()
    pre = nn.Sequential(backbone, nn.Linear(32, 4))
    print("pretraining")
    fit(pre, pre.parameters(), x, angle, xv, anglev, epochs=3, lr=3e-3)
    probe = Probe(backbone, 4)
    print("probe")
    fit(probe, probe.head.parameters(), x[:1200], other[:1200], xv, otherv, epochs=16, lr=5e-2, patience=2)
    print("final", score(probe, xv, otherv))


if __name__ == "__main__":
    main()
