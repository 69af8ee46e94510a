"""Foreground segmentation of noisy blobs with a small U-Net."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-blobs-seg",
    "row": None,
    "title": "eight micro-batches are accumulated without dividing the loss by eight",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["accumulation-not-normalised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.GroupNorm(4, cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, base=8):
        super().__init__()
        self.down1 = conv_block(1, base)
        self.down2 = conv_block(base, base * 2)
        self.mid = conv_block(base * 2, base * 4)
        self.up2 = nn.ConvTranspose2d(base * 4, base * 2, 2, stride=2)
        self.dec2 = conv_block(base * 4, base * 2)
        self.up1 = nn.ConvTranspose2d(base * 2, base, 2, stride=2)
        self.dec1 = conv_block(base * 2, base)
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        d = self.dec2(torch.cat([self.up2(c), b], dim=1))
        e = self.dec1(torch.cat([self.up1(d), a], dim=1))
        return self.out(e)


def make_images(n, gen, size=20):
    yy, xx = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")
    cx, cy = torch.rand(2, n, 2, 1, 1, generator=gen) * (size - 8) + 4
    r = torch.rand(n, 2, 1, 1, generator=gen) * 3 + 2
    inside = ((xx - cx) ** 2 + (yy - cy) ** 2 < r**2).any(dim=1)
    mask = inside.float().unsqueeze(1)
    img = mask + 0.6 * torch.randn(n, 1, size, size, generator=gen)
    return img, mask


def dice(logits, mask):
    p = (logits > 0).float()
    return (2 * (p * mask).sum() / (p.sum() + mask.sum() + 1e-6)).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--accum", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.6)
    args = parser.parse_args()

    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(2)
    images, masks = make_images(704, gen)
    val_images, val_masks = make_images(128, gen)
    model = UNet()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    per_epoch = len(images) // (args.micro_batch * args.accum)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * per_epoch, cycle_momentum=False)

    for epoch in range(args.epochs):
        model.train()
        perm = torch.randperm(len(images))
        running, count = 0.0, 0
        opt.zero_grad()
        for k, idx in enumerate(perm.split(args.micro_batch)):
            loss = F.binary_cross_entropy_with_logits(model(images[idx]), masks[idx])
            loss.backward()
            running += loss.item()
            count += 1
            if (k + 1) % args.accum == 0:
                opt.step()
                sched.step()
                opt.zero_grad()
        model.eval()
        with torch.no_grad():
            logits = model(val_images)
            val = F.binary_cross_entropy_with_logits(logits, val_masks).item()
        print(f"epoch {epoch}  train {running / count:.4f}  val {val:.4f}  dice {dice(logits, val_masks):.3f}")


if __name__ == "__main__":
    main()
