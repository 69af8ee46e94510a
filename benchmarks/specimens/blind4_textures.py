import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

TRUTH = {
    "id": "blind4-textures",
    "title": "evaluate() switches the model to eval mode and nothing switches it back, so from the second epoch on dropout is off and batch-norm statistics are frozen while training.",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["model-left-in-eval"],
    "bricks": [],
    "first_step": 36,
    "needs": "cpu",
    "crashes": False,
}


def build(classes=4):
    def stage(i, o):
        return [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True), nn.MaxPool2d(2)]

    return nn.Sequential(
        *stage(3, 16), *stage(16, 32), nn.Dropout2d(0.2), *stage(32, 48),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(48, classes),
    )


def textures(n, classes=4, size=24):
    y = torch.randint(0, classes, (n,))
    noise = torch.randn(n, 3, size, size)
    out = torch.empty_like(noise)
    for c in range(classes):
        k = torch.zeros(3, 1, 5, 5)
        if c == 0:
            k[:, :, 2, :] = 0.4
        elif c == 1:
            k[:, :, :, 2] = 0.4
        elif c == 2:
            k[:, 0] = torch.eye(5) * 0.4
        else:
            k[:, 0] = torch.eye(5).flip(0) * 0.4
        m = y == c
        out[m] = F.conv2d(noise[m], k, padding=2, groups=3)
    flip = torch.rand(n) < 0.1
    y[flip] = torch.randint(0, classes, (int(flip.sum()),))
    return out + 0.7 * torch.randn_like(out), y


def evaluate(model, loader):
    model.eval()
    loss = hits = n = 0
    with torch.no_grad():
        for x, y in loader:
            o = model(x)
            loss += F.cross_entropy(o, y, reduction="sum").item()
            hits += (o.argmax(1) == y).sum().item()
            n += len(y)
    return loss / n, hits / n


def main():
    torch.set_num_threads(1)
    torch.manual_seed(9)
    train_set, val_set = random_split(TensorDataset(*textures(1440)), [1152, 288])
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=96)
    model = build()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=True)
    epochs = 7
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * len(train_loader))
    best = 0.0
    ckpt = os.path.join(tempfile.mkdtemp(), "best.pt")
    model.train()
    for epoch in range(epochs):
        run = 0.0
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            run += loss.item()
        vl, va = evaluate(model, val_loader)
        if va > best:
            best = va
            torch.save(model.state_dict(), ckpt)
        print(f"epoch {epoch} train {run / len(train_loader):.4f} val {vl:.4f} acc {va:.3f}")
    os.remove(ckpt)


if __name__ == "__main__":
    main()
