import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-c06-center-heatmap",
    "row": None,
    "title": "the rare-object prior bias (-4.6) is given to every convolution, not only the last: the ReLUs of the trunk never fire",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["dead-activations", "bad-initialisation"],
    "bricks": ["trunk"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

SIZE = 32


def conv(i, o, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1), nn.ReLU(inplace=True))


class CenterDetector(nn.Module):
    """Heatmap of blob centres at half resolution."""

    def __init__(self, width=24, prior=0.01):
        super().__init__()
        self.trunk = nn.Sequential(conv(1, width), conv(width, width, 2), conv(width, width), conv(width, width))
        self.heatmap = nn.Conv2d(width, 1, 1)
        self._init_weights(prior)

    def _init_weights(self, prior):
        bias_value = -math.log((1 - prior) / prior)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                nn.init.constant_(m.bias, bias_value)

    def forward(self, x):
        return self.heatmap(self.trunk(x))


def make_scene(n, gen):
    img = 0.3 * torch.randn(n, 1, SIZE, SIZE, generator=gen)
    hm = torch.zeros(n, 1, SIZE // 2, SIZE // 2)
    grid = torch.arange(SIZE).float()
    half = torch.arange(SIZE // 2).float()
    for k in range(3):
        c = torch.randint(4, SIZE - 4, (n, 2), generator=gen).float()
        gy = torch.exp(-((grid[None] - c[:, :1]) ** 2) / 6)
        gx = torch.exp(-((grid[None] - c[:, 1:]) ** 2) / 6)
        img[:, 0] += 2.0 * gy[:, :, None] * gx[:, None, :]
        hy = torch.exp(-((half[None] - (c[:, :1] / 2).floor()) ** 2) / 1.5)
        hx = torch.exp(-((half[None] - (c[:, 1:] / 2).floor()) ** 2) / 1.5)
        hm[:, 0] = torch.maximum(hm[:, 0], hy[:, :, None] * hx[:, None, :])
    img = (img - img.mean()) / img.std()
    return img, hm


def penalty_reduced_focal(logits, target, alpha=2, beta=4):
    logp, lognp = F.logsigmoid(logits), F.logsigmoid(-logits)
    p = logits.sigmoid()
    pos = target.eq(1).float()
    pos_loss = logp * (1 - p) ** alpha * pos
    neg_loss = lognp * p ** alpha * (1 - target) ** beta * (1 - pos)
    return -(pos_loss.sum() + neg_loss.sum()) / pos.sum().clamp(min=1)


def recall_at_peaks(logits, target):
    flat, tgt = logits.flatten(1), target.flatten(1)
    top = flat.topk(3, dim=1).indices
    return tgt.gather(1, top).ge(0.5).float().mean().item()


def main():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(99)
    val_x, val_y = make_scene(128, gen)
    net = CenterDetector()
    opt = torch.optim.Adam(net.parameters(), lr=1.5e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=150)
    t0 = time.time()
    for it in range(150):
        x, y = make_scene(16, gen)
        loss = penalty_reduced_focal(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if (it + 1) % 25 == 0:
            net.eval()
            with torch.no_grad():
                out = net(val_x)
            print(f"{it + 1:4d}/150 loss {loss.item():.4f} val {penalty_reduced_focal(out, val_y).item():.4f} "
                  f"peak recall {recall_at_peaks(out, val_y):.3f} {time.time() - t0:.1f}s")
            net.train()


main()
