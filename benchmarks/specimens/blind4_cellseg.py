import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-cellseg",
    "title": "Hand-written binary cross-entropy takes log(p) and log(1-p) of a sigmoid that saturates to exactly 1.0 or 0.0, so 0 * -inf gives NaN.",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["log-of-zero"],
    "bricks": [],
    "first_step": 23,
    "needs": "cpu",
    "crashes": False,
}


def parse():
    ap = argparse.ArgumentParser("tiny u-net for cell masks")
    ap.add_argument("--steps", type=int, default=180)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--size", type=int, default=24)
    return ap.parse_args([])


def make_images(n, size, gen):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    masks = torch.zeros(n, 1, size, size)
    light = torch.zeros(n, 1, size, size)
    for i in range(n):
        for _ in range(3):
            cy, cx = torch.randint(6, size - 6, (2,), generator=gen).tolist()
            r = torch.randint(3, 7, (1,), generator=gen).item()
            disc = (yy - cy) ** 2 + (xx - cx) ** 2 < r * r
            masks[i, 0][disc] = 1.0
            light[i, 0][disc] = torch.randn((), generator=gen).mul(0.8).exp().item() + 0.5
    imgs = light - 0.5 + 0.15 * torch.randn(masks.shape, generator=gen)
    return imgs, masks


class DoubleConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(cin, cout, 3, padding=1), nn.ReLU(),
            nn.Conv2d(cout, cout, 3, padding=1), nn.ReLU(),
        )

    def forward(self, x):
        return self.net(x)


class UNet(nn.Module):
    def __init__(self, w=8):
        super().__init__()
        self.enc1 = DoubleConv(1, w)
        self.enc2 = DoubleConv(w, 2 * w)
        self.mid = DoubleConv(2 * w, 4 * w)
        self.up2 = nn.ConvTranspose2d(4 * w, 2 * w, 2, stride=2)
        self.dec2 = DoubleConv(4 * w, 2 * w)
        self.up1 = nn.ConvTranspose2d(2 * w, w, 2, stride=2)
        self.dec1 = DoubleConv(2 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.dec2(torch.cat([self.up2(c), b], 1))
        a = self.dec1(torch.cat([self.up1(b), a], 1))
        return torch.sigmoid(self.out(a))


def seg_loss(prob, target, pos_weight=1.5):
    ll = pos_weight * target * torch.log(prob) + (1 - target) * torch.log(1 - prob)
    bce = -ll.mean()
    inter = (prob * target).sum((1, 2, 3))
    dice = 1 - (2 * inter + 1) / (prob.sum((1, 2, 3)) + target.sum((1, 2, 3)) + 1)
    return bce + 0.5 * dice.mean()


@torch.no_grad()
def iou(model, x, y):
    model.eval()
    pred = model(x) > 0.5
    model.train()
    t = y > 0.5
    return ((pred & t).sum() / (pred | t).sum().clamp(min=1)).item()


def main():
    args = parse()
    torch.set_num_threads(1)
    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(5)
    xtr, ytr = make_images(160, args.size, gen)
    xva, yva = make_images(32, args.size, gen)
    model = UNet()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    best = -1.0
    with tempfile.TemporaryDirectory() as d:
        for step in range(args.steps):
            idx = torch.randint(0, len(xtr), (args.batch,), generator=gen)
            loss = seg_loss(model(xtr[idx]), ytr[idx])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            if step % 20 == 0:
                score = iou(model, xva, yva)
                print(f"step {step:4d} loss {loss.item():.4f} iou {score:.3f}")
                if score > best:
                    best = score
                    torch.save(model.state_dict(), os.path.join(d, "best.pt"))
    print("best iou", best)


if __name__ == "__main__":
    main()
