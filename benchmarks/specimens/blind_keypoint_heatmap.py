# Keypoint heatmaps with a small fully convolutional net and a focal loss.
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-keypoint-heatmap",
    "row": None,
    "title": "the focal-loss prior bias (-4.6) is written into every conv, not only the last one; the ReLUs never fire",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["dead-activations", "bad-initialisation"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

SIZE = 20


def render(n, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    img = 0.6 * torch.randn(n, 1, SIZE, SIZE, generator=g)
    heat = torch.zeros(n, 1, SIZE, SIZE)
    for k in range(3):
        c = torch.randint(3, SIZE - 3, (n, 2), generator=g)
        d2 = (yy[None] - c[:, 0, None, None]) ** 2 + (xx[None] - c[:, 1, None, None]) ** 2
        ring = torch.exp(-((d2.float().sqrt() - 2.0) ** 2) / 0.5)
        img[:, 0] += 2.0 * ring if k < 2 else -2.0 * ring
        if k < 2:
            heat[:, 0] = torch.maximum(heat[:, 0], (d2 == 0).float())
    img = (img - img.mean()) / img.std()
    return img, heat


class ConvBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.conv(x))


class HeatmapNet(nn.Module):
    def __init__(self, width=24, depth=4, prior=0.01):
        super().__init__()
        self.stem = ConvBlock(1, width)
        self.body = nn.Sequential(*[ConvBlock(width, width) for _ in range(depth)])
        self.out = nn.Conv2d(width, 1, 1)
        self.reset_parameters(prior)

    def reset_parameters(self, prior):
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                nn.init.constant_(m.bias, -math.log((1 - prior) / prior))

    def forward(self, x):
        return self.out(self.body(self.stem(x)))


def focal_loss(logits, target, alpha=2.0):
    logp = nn.functional.logsigmoid(logits)
    lognp = nn.functional.logsigmoid(-logits)
    p = logp.exp()
    pos = -((1 - p) ** alpha) * logp * target
    neg = -(p**alpha) * lognp * (1 - target)
    return (pos.sum() + neg.sum()) / target.sum().clamp(min=1)


def recall(model, loader):
    model.eval()
    good = total = 0
    with torch.no_grad():
        for x, t in loader:
            s = model(x).flatten(1)
            top = s.topk(2, dim=1).indices
            good += t.flatten(1).gather(1, top).sum().item()
            total += t.sum().item()
    model.train()
    return good / total


def main():
    torch.manual_seed(0)
    train = DataLoader(TensorDataset(*render(960, 1)), batch_size=20, shuffle=True)
    val = DataLoader(TensorDataset(*render(200, 2)), batch_size=100)
    net = HeatmapNet()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    epochs = 4
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=epochs * len(train))
    for epoch in range(epochs):
        running = 0.0
        for x, t in train:
            opt.zero_grad()
            loss = focal_loss(net(x), t)
            loss.backward()
            opt.step()
            sched.step()
            running += loss.item()
        print(f"epoch {epoch + 1}/{epochs} loss {running / len(train):.4f} val recall {recall(net, val):.3f}")


main()
