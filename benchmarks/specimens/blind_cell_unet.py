import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-cell-unet",
    "row": None,
    "title": "validate() (also run once before training as a sanity check) calls eval() and train() is never called again",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["model-left-in-eval"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def cells(n, seed, size=24):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")
    mask = torch.zeros(n, size, size)
    tex = torch.zeros(n, size, size)
    for k in range(3):
        cy, cx = (torch.randint(4, size - 4, (n, 1, 1), generator=g).float() for _ in range(2))
        r = 2.0 + 2.5 * torch.rand(n, 1, 1, generator=g)
        inside = ((yy - cy) ** 2 + (xx - cx) ** 2 < r**2).float()
        if k < 2:
            mask = torch.maximum(mask, inside)
            tex = tex + inside
        else:  # debris: same brightness, striped
            tex = tex + inside * (xx % 2) * 2
    img = 1.2 * tex + 0.9 * torch.randn(n, size, size, generator=g)
    return (img - img.mean()).div(img.std()).unsqueeze(1), mask.unsqueeze(1)


class Down(nn.Sequential):
    def __init__(self, a, b, p=0.0):
        super().__init__(
            nn.Conv2d(a, b, 3, padding=1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(),
            nn.Conv2d(b, b, 3, padding=1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(),
            nn.Dropout2d(p),
        )


class UNet(nn.Module):
    def __init__(self, c=10):
        super().__init__()
        self.d1, self.d2, self.mid = Down(1, c), Down(c, 2 * c), Down(2 * c, 4 * c, 0.2)
        self.u2, self.u1 = Down(6 * c, 2 * c), Down(3 * c, c)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = self.mid(F.max_pool2d(b, 2))
        m = self.u2(torch.cat([F.interpolate(m, scale_factor=2), b], 1))
        m = self.u1(torch.cat([F.interpolate(m, scale_factor=2), a], 1))
        return self.out(m)


def dice(logits, t):
    p = (logits > 0).float()
    return (2 * (p * t).sum() / (p.sum() + t.sum() + 1e-6)).item()


class Trainer:
    def __init__(self, model, train_loader, val_loader, epochs):
        self.model, self.train_loader, self.val_loader, self.epochs = model, train_loader, val_loader, epochs
        self.opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, epochs * len(train_loader))

    def validate(self):
        self.model.eval()
        loss, d = 0.0, 0.0
        with torch.no_grad():
            for x, t in self.val_loader:
                z = self.model(x)
                loss += F.binary_cross_entropy_with_logits(z, t).item()
                d += dice(z, t)
        return loss / len(self.val_loader), d / len(self.val_loader)

    def fit(self):
        print("sanity check: val loss %.4f dice %.3f" % self.validate())
        for epoch in range(self.epochs):
            total = 0.0
            for x, t in self.train_loader:
                loss = F.binary_cross_entropy_with_logits(self.model(x), t)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.sched.step()
                total += loss.item()
            vl, vd = self.validate()
            print(f"epoch {epoch} train {total / len(self.train_loader):.4f} val {vl:.4f} dice {vd:.3f}")


if __name__ == "__main__":
    torch.manual_seed(4)
    tl = DataLoader(TensorDataset(*cells(480, 1)), batch_size=16, shuffle=True)
    vl = DataLoader(TensorDataset(*cells(96, 2)), batch_size=48)
    Trainer(UNet(), tl, vl, epochs=4).fit()
