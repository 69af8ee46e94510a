import copy
import torch
from torch import nn
import torch.nn.functional as F

TRUTH = {"id": "blind6-e32-restarts-segmenter", "title": "U-Net segmentation, cosine warm restarts ending with the run, Dice plus label-smoothed BCE, hand-made EMA", "family": "cnn",
         "needs": "cpu", "trap": "lr jumps back up at restarts and the loss bumps; sigmoid inside the Dice part; loss floor above zero from smoothing; EMA copy never gets gradients"}


class CFG:
    seed = 17
    n_train, n_val, size = 320, 64, 32
    batch, first_cycle = 16, 35
    lr, min_lr = 4e-3, 1e-5
    smooth, ema = 0.05, 0.97


def ellipses(n, size, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    c = torch.rand(n, 2, generator=g) - 0.5
    r = 0.2 + 0.3 * torch.rand(n, 2, generator=g)
    m = (((yy - c[:, :1, None]) / r[:, :1, None]) ** 2 + ((xx - c[:, 1:, None]) / r[:, 1:, None]) ** 2 < 1).float()
    img = m * 0.9 + 0.5 * torch.randn(n, size, size, generator=g)
    return img[:, None], m[:, None]


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, w=8):
        super().__init__()
        self.e1, self.e2, self.e3 = conv(1, w), conv(w, 2 * w), conv(2 * w, 4 * w)
        self.up2 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2)
        self.d2 = conv(4 * w, 2 * w)
        self.up1 = nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.d1 = conv(2 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.e1(x)
        b = self.e2(F.max_pool2d(a, 2))
        c = self.e3(F.max_pool2d(b, 2))
        b = self.d2(torch.cat([self.up2(c), b], 1))
        a = self.d1(torch.cat([self.up1(b), a], 1))
        return self.out(a)


def criterion(logits, m):
    soft = m * (1 - 2 * CFG.smooth) + CFG.smooth
    bce = F.binary_cross_entropy_with_logits(logits, soft)
    p = logits.sigmoid()
    dice = 1 - (2 * (p * m).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + m.sum((1, 2, 3)) + 1)
    return bce + dice.mean()


@torch.no_grad()
def blend(ema, net):
    for e, p in zip(ema.parameters(), net.parameters()):
        e.lerp_(p, 1 - CFG.ema)
    for e, b in zip(ema.buffers(), net.buffers()):
        e.copy_(b)


@torch.no_grad()
def iou(net, x, m):
    was = net.training
    net.eval()
    p = net(x) > 0
    net.train(was)
    return ((p & (m > 0)).sum() / (p | (m > 0)).sum()).item()


torch.manual_seed(CFG.seed)
x, m = ellipses(CFG.n_train, CFG.size, 1)
vx, vm = ellipses(CFG.n_val, CFG.size, 2)
net = UNet()
ema = copy.deepcopy(net).eval().requires_grad_(False)
opt = torch.optim.AdamW(net.parameters(), lr=CFG.lr, weight_decay=1e-2)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=CFG.first_cycle, T_mult=2, eta_min=CFG.min_lr)
total, step = 7 * CFG.first_cycle, 0
while step < total:
    for idx in torch.randperm(CFG.n_train).split(CFG.batch):
        if step == total:
            break
        flip = torch.rand(()) < 0.5
        bx, bm = (x[idx].flip(-1), m[idx].flip(-1)) if flip else (x[idx], m[idx])
        loss = criterion(net(bx), bm)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        blend(ema, net)
        step += 1
    print(f"step {step} lr {sched.get_last_lr()[0]:.2e} loss {loss.item():.3f} iou {iou(net, vx, vm):.3f} ema {iou(ema, vx, vm):.3f}")
