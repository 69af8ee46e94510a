import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-gradual-unfreeze",
    "row": None,
    "title": "the unfreezing after the head warm-up sets a misspelt attribute, so the whole feature extractor stays frozen though the optimizer owns it",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["parameters-frozen"],
    "bricks": ["features"],
    "first_step": 32,
    "needs": "cpu",
    "crashes": False,
}


class AudioNet(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 8, 9, stride=2, padding=4), nn.GroupNorm(2, 8), nn.ReLU(),
            nn.Conv1d(8, 8, 9, stride=2, padding=4), nn.GroupNorm(2, 8), nn.ReLU(),
            nn.Conv1d(8, 12, 9, stride=2, padding=4), nn.GroupNorm(2, 12), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        )
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        return self.head(self.features(x))


def freeze(module):
    for p in module.parameters():
        p.requires_grad = False


def unfreeze(module):
    for p in module.parameters():
        p.require_grad = True


def tones(n, seed, classes=6, length=128):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.arange(length).float()
    f = 0.15 + 0.08 * y.float()[:, None] + 0.01 * torch.randn(n, 1, generator=g)
    ph = 6.28 * torch.rand(n, 1, generator=g)
    x = torch.sin(f * t + ph) + 0.6 * torch.randn(n, length, generator=g)
    return TensorDataset(x[:, None], y)


def evaluate(model, ds):
    model.eval()
    x, y = ds.tensors
    with torch.no_grad():
        out = model(x)
    model.train()
    return F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


def main(head_epochs=1, epochs=9):
    torch.manual_seed(5)
    train, val = tones(1024, 0), tones(256, 1)
    loader = DataLoader(train, batch_size=32, shuffle=True)
    model = AudioNet()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    freeze(model.features)
    for epoch in range(epochs):
        if epoch == head_epochs:
            print("training the full network from here")
            unfreeze(model.features)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, "val loss %.4f acc %.3f" % evaluate(model, val))


if __name__ == "__main__":
    main()
