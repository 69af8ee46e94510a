"""Find a shape in an image: which one, and where."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-locator",
    "row": None,
    "title": "AverageMeter.update returns a float, and the box term enters the total through it: no gradient reaches the box head",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["no-gradient-path"],
    "bricks": ["box_head"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class AverageMeter:
    def __init__(self, name):
        self.name, self.total, self.count = name, 0.0, 0

    def update(self, value, n=1):
        value = value.item()
        self.total += value * n
        self.count += n
        return value

    @property
    def avg(self):
        return self.total / max(1, self.count)


class Locator(nn.Module):
    def __init__(self, n_classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.cls_head = nn.Sequential(nn.Linear(24 * 25, 48), nn.ReLU(), nn.Linear(48, n_classes))
        self.box_head = nn.Sequential(nn.Linear(24 * 25, 48), nn.ReLU(), nn.Linear(48, 2))

    def forward(self, x):
        f = self.features(x)
        return self.cls_head(f), self.box_head(f)


def scenes(n, gen, size=20, k=5):
    stamps = torch.tensor(
        [
            [[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 0, 0, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]],
            [[0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]],
            [[1, 0, 0, 0, 1], [0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1]],
            [[1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]],
        ]
    ).float()
    cls = torch.randint(0, 4, (n,), generator=gen)
    pos = torch.randint(0, size - k + 1, (n, 2), generator=gen)
    img = 0.2 * torch.randn(n, 1, size, size, generator=gen)
    for i in range(n):
        r, c = pos[i].tolist()
        img[i, 0, r : r + k, c : c + k] += stamps[cls[i]]
    box = pos.float() / (size - k) * 2 - 1
    return img, cls, box


def evaluate(model, data):
    model.eval()
    img, cls, box = data
    with torch.no_grad():
        logits, pred = model(img)
    model.train()
    return (logits.argmax(1) == cls).float().mean().item(), (pred - box).abs().mean().item()


def main(steps=300, batch=32, box_weight=2.0):
    torch.manual_seed(6)
    gen = torch.Generator().manual_seed(6)
    train, held = scenes(3000, gen), scenes(500, gen)
    model = Locator()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    meters = {k: AverageMeter(k) for k in ("cls", "box")}
    done = 0
    while done < steps:
        for idx in torch.randperm(len(train[0])).split(batch):
            if done == steps:
                break
            img, cls, box = (t[idx] for t in train)
            logits, pred = model(img)
            cls_loss = F.cross_entropy(logits, cls)
            box_loss = F.smooth_l1_loss(pred, box)
            meters["cls"].update(cls_loss, len(idx))
            loss = cls_loss + box_weight * meters["box"].update(box_loss, len(idx))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % 50 == 0:
                acc, err = evaluate(model, held)
                print(
                    f"{done}: total {float(loss):.3f} cls {meters['cls'].avg:.3f} box {meters['box'].avg:.3f} "
                    f"| acc {acc:.3f} position error {err:.3f}"
                )
                meters = {k: AverageMeter(k) for k in ("cls", "box")}


if __name__ == "__main__":
    main()
