import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-segmenter-ema",
    "row": None,
    "title": "validation switches the averaged copy to eval but predicts with the live model, which is still in train mode",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["model-left-in-train"],
    "bricks": [],
    "first_step": 25,
    "needs": "cpu",
    "crashes": False,
}


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.d1, self.d2, self.mid = conv(1, c), conv(c, 2 * c), conv(2 * c, 4 * c)
        self.drop = nn.Dropout2d(0.3)
        self.u2 = nn.ConvTranspose2d(4 * c, 2 * c, 2, stride=2)
        self.c2 = conv(4 * c, 2 * c)
        self.u1 = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.c1 = conv(2 * c, c)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = self.drop(self.mid(F.max_pool2d(b, 2)))
        b = self.c2(torch.cat([self.u2(m), b], 1))
        a = self.c1(torch.cat([self.u1(b), a], 1))
        return self.out(a)


def blobs(n, g, size=24):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cx, cy = (torch.rand(2, n, 1, 1, generator=g) * (size - 8) + 4)
    r = torch.rand(n, 1, 1, generator=g) * 5 + 1.5
    mask = (((xx - cx) ** 2 + (yy - cy) ** 2) < r ** 2).float().unsqueeze(1)
    gain = torch.rand(n, 1, 1, 1, generator=g) * 2 + 0.5
    img = gain * mask + 0.4 * torch.randn(n, 1, size, size, generator=g)
    return img, mask


@torch.no_grad()
def ema_update(avg, model, decay=0.95):
    for a, p in zip(avg.parameters(), model.parameters()):
        a.lerp_(p, 1 - decay)
    for a, b in zip(avg.buffers(), model.buffers()):
        a.copy_(b)


def dice(logits, y):
    p = (logits > 0).float()
    return (2 * (p * y).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)


@torch.no_grad()
def validate(model, ema, images, masks):
    ema.eval()
    scores, losses = [], []
    for i in range(len(images)):          # cases are scored one by one, as in the clinic
        z = model(images[i:i + 1])
        scores.append(dice(z, masks[i:i + 1]).mean())
        losses.append(F.binary_cross_entropy_with_logits(z, masks[i:i + 1]))
    return torch.stack(scores).mean().item(), torch.stack(losses).mean().item()


torch.manual_seed(0)
gen = torch.Generator().manual_seed(7)
train_x, train_y = blobs(400, gen)
val_x, val_y = blobs(40, gen)
model = UNet()
ema = copy.deepcopy(model)
optim = torch.optim.AdamW(model.parameters(), lr=2e-3)
EPOCHS, BS = 8, 16
sched = torch.optim.lr_scheduler.CosineAnnealingLR(optim, EPOCHS * (400 // BS))
model.train()
for ep in range(EPOCHS):
    order = torch.randperm(400)
    tot = 0.0
    for i in range(0, 400, BS):
        idx = order[i:i + BS]
        loss = F.binary_cross_entropy_with_logits(model(train_x[idx]), train_y[idx])
        optim.zero_grad()
        loss.backward()
        optim.step()
        sched.step()
        ema_update(ema, model)
        tot += loss.item()
    d, v = validate(model, ema, val_x, val_y)
    print(f"epoch {ep}: loss {tot / (400 // BS):.4f} | val dice {d:.3f} val loss {v:.4f}")
