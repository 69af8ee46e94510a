import logging
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname).1s %(message)s")
logger = logging.getLogger(__name__)

TRUTH = {
    "id": "blind5-c12-box-multitask",
    "row": None,
    "title": "the box loss raises a shape error on every batch and an except returns 0.0 in its place: the box task is never trained",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["silent-fallback", "sentinel-loss"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def rectangles(n, seed, size=24):
    g = torch.Generator().manual_seed(seed)
    lo = torch.randint(1, 10, (n, 2), generator=g)
    wh = torch.randint(5, 13, (n, 2), generator=g)
    hi = lo + wh
    kind = torch.randint(0, 3, (n,), generator=g)
    r = torch.arange(size)
    inx = (r[None] >= lo[:, :1]) & (r[None] < hi[:, :1])
    iny = (r[None] >= lo[:, 1:]) & (r[None] < hi[:, 1:])
    mask = iny[:, :, None] & inx[:, None, :]
    stripes = torch.stack([torch.ones(size, size), ((r[:, None] % 4) < 2).float().expand(size, size) * 2 - 0.5,
                           ((r[None] % 4) < 2).float().expand(size, size) * 2 - 0.5])
    img = mask * stripes[kind] + 0.3 * torch.randn(n, size, size, generator=g)
    boxes = torch.cat([lo, hi], 1).float() / size
    return img.unsqueeze(1), kind, boxes


class DetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 36, 96), nn.ReLU())
        self.cls_head = nn.Linear(96, 3)
        self.box_head = nn.Linear(96, 4)

    def forward(self, x):
        f = self.backbone(x)
        return {"cls": self.cls_head(f), "box": self.box_head(f).sigmoid()}


def giou(a, b):
    lt, rb = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(1)
    area = lambda t: (t[:, 2:] - t[:, :2]).clamp(min=0).prod(1)
    union = area(a) + area(b) - inter + 1e-7
    hull = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).clamp(min=0).prod(1) + 1e-7
    return inter / union - (hull - union) / hull


class MultiTaskLoss:
    def __init__(self, box_weight=2.0, l1_weight=5.0):
        self.box_weight, self.l1_weight = box_weight, l1_weight

    def box_term(self, pred, target, label):
        weight = torch.where(label == 0, 0.5, 1.0).unsqueeze(1).expand(-1, 4)
        overlap = (1 - giou(pred, target)) * weight
        return self.box_weight * overlap.mean() + self.l1_weight * F.l1_loss(pred, target)

    def __call__(self, out, label, boxes):
        cls = F.cross_entropy(out["cls"], label)
        try:
            box = self.box_term(out["box"], boxes, label)
        except RuntimeError as exc:  # batches without any usable box
            logger.debug("box term skipped: %s", exc)
            box = torch.zeros(())
        return cls + box, {"cls": cls.item(), "box": box.item()}


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    hit = mae = iou = n = 0
    for x, k, b in loader:
        out = net(x)
        hit += (out["cls"].argmax(1) == k).sum().item()
        mae += (out["box"] - b).abs().mean(1).sum().item()
        iou += giou(out["box"], b).sum().item()
        n += len(x)
    net.train()
    return hit / n, mae / n, iou / n


def main():
    torch.manual_seed(12)
    train = DataLoader(TensorDataset(*rectangles(1600, 1)), batch_size=32, shuffle=True)
    test = DataLoader(TensorDataset(*rectangles(400, 2)), batch_size=200)
    net, criterion = DetNet(), MultiTaskLoss()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4)
    for epoch in range(4):
        sums = {"cls": 0.0, "box": 0.0}
        for x, k, b in train:
            loss, parts = criterion(net(x), k, b)
            opt.zero_grad()
            loss.backward()
            opt.step()
            for key in sums:
                sums[key] += parts[key] / len(train)
        acc, mae, iou = evaluate(net, test)
        logger.info("epoch %d cls %.4f box %.4f | acc %.3f box mae %.3f giou %.3f", epoch, sums["cls"], sums["box"], acc, mae, iou)


if __name__ == "__main__":
    main()
