import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-heatmap-prior",
    "row": None,
    "title": "the rare-positive prior bias (-4.6), meant for the output layer, is put on every convolution: the ReLU units before it never fire",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["dead-activations", "bad-initialisation"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def init_detector(module, prior=0.01):
    bias = -math.log((1 - prior) / prior)
    for m in module.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            nn.init.constant_(m.bias, bias)


class CenterHead(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.mid1 = nn.Conv2d(width, width, 3, padding=1)
        self.mid2 = nn.Conv2d(width, width, 3, padding=1)
        self.heat = nn.Conv2d(width, 1, 1)
        init_detector(self)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(self.mid1(x))
        x = F.relu(self.mid2(x))
        return self.heat(x)


def focal(logits, target, gamma=2.0, alpha=0.75):
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    pt = p * target + (1 - p) * (1 - target)
    w = alpha * target + (1 - alpha) * (1 - target)
    return (w * (1 - pt) ** gamma * ce).sum() / target.sum().clamp(min=1)


def draw(n, s=20):
    x = 0.3 * torch.randn(n, 1, s, s)
    t = torch.zeros(n, 1, s, s)
    for b in range(n):
        for _ in range(3):
            i, j = torch.randint(2, s - 2, (2,)).tolist()
            x[b, 0, i - 1 : i + 2, j] += 1.2
            x[b, 0, i, j - 1 : j + 2] += 1.2
            t[b, 0, i, j] = 1.0
    return x, t


torch.manual_seed(0)
net = CenterHead()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(200):
    x, t = draw(16)
    loss = focal(net(x), t)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0 or step == 199:
        print(f"{step:3d} focal {loss.item():.4f}")
