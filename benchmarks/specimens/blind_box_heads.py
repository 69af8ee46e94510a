import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-box-heads",
    "row": None,
    "title": "the localisation loss is averaged over the images that contain an object, and is 0/0 when a batch holds none",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["division-by-zero"],
    "bricks": [],
    "first_step": 54,
    "needs": "cpu",
    "crashes": False,
}


def scenes(n, seed, s=20, rate=0.22):
    g = torch.Generator().manual_seed(seed)
    has = (torch.rand(n, generator=g) < rate).float()
    box = 4 + (s - 8) * torch.rand(n, 2, generator=g)
    yy, xx = torch.meshgrid(torch.arange(s).float(), torch.arange(s).float(), indexing="ij")
    d = (yy - box[:, 0, None, None]).abs().maximum((xx - box[:, 1, None, None]).abs())
    img = 0.3 * torch.randn(n, s, s, generator=g) + has[:, None, None] * (d < 3).float()
    return img[:, None], has, box / s


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.obj = nn.Linear(24 * 25, 1)
        self.loc = nn.Linear(24 * 25, 2)

    def forward(self, x):
        h = self.backbone(x)
        return self.obj(h).squeeze(1), self.loc(h)


class DetectionLoss(nn.Module):
    def __init__(self, loc_weight=5.0):
        super().__init__()
        self.loc_weight = loc_weight

    def forward(self, obj, loc, has, centre):
        cls = F.binary_cross_entropy_with_logits(obj, has)
        err = F.smooth_l1_loss(loc, centre, reduction="none").sum(1)
        reg = (err * has).sum() / has.sum()
        return cls + self.loc_weight * reg, cls, reg


def main():
    torch.manual_seed(1)
    img, has, centre = scenes(1920, 0)
    loader = DataLoader(TensorDataset(img, has, centre), batch_size=16, shuffle=True)
    net, crit = Detector(), DetectionLoss()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    step = 0
    for epoch in range(3):
        for x, h, c in loader:
            opt.zero_grad()
            loss, cls, reg = crit(*net(x), h, c)
            loss.backward()
            opt.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} cls {cls.item():.4f} reg {reg.item():.5f}")
            step += 1


main()
