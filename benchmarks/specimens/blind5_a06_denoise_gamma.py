"""Low-light restoration: linear-light network, loss in display space."""
import torch
import torch.nn as nn

TRUTH = {
    "id": "blind5-a06-denoise-gamma",
    "row": None,
    "title": "fractional power (1/2.2) of an unbounded network output: the first negative pixel gives NaN",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["invalid-op"],
    "bricks": [],
    "first_step": 16,
    "needs": "cpu",
    "crashes": False,
}

GAMMA = 2.2


def scenes(n, size=24, gen=None):
    """Smooth random linear-light images in [0, 1] with dark regions."""
    base = torch.rand(n, 3, 4, 4, generator=gen)
    img = nn.functional.interpolate(base, size=(size, size), mode="bicubic", align_corners=False).clamp(0, 1)
    return (img ** 2) * 0.85 + 0.02


def degrade(img, gen=None):
    shot = torch.randn(img.shape, generator=gen) * (0.02 + 0.15 * img).clamp(min=0).sqrt() * 0.4
    return img + shot


def to_display(x):
    return x.pow(1.0 / GAMMA)


class DnCNN(nn.Module):
    def __init__(self, ch=24, depth=4):
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(3, ch, 3, padding=1), nn.ReLU(inplace=True))
        body = []
        for _ in range(depth - 2):
            body += [nn.Conv2d(ch, ch, 3, padding=1), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*body)
        self.tail = nn.Conv2d(ch, 3, 3, padding=1)
        nn.init.normal_(self.tail.weight, std=1e-3)
        nn.init.constant_(self.tail.bias, 0.4)

    def forward(self, x):
        return self.tail(self.body(self.head(x)))


def psnr(a, b):
    return -10 * torch.log10((a.clamp(0, 1) - b).pow(2).mean())


def main():
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(8)
    val_clean = scenes(32, gen=gen)
    val_noisy = degrade(val_clean, gen)
    net = DnCNN()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    n_steps = 300
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, n_steps)

    for it in range(n_steps):
        clean = scenes(16, gen=gen)
        noisy = degrade(clean, gen)
        pred = net(noisy)
        loss = (to_display(pred) - to_display(clean)).abs().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if it % 20 == 0:
            with torch.no_grad():
                p = psnr(net(val_noisy), val_clean)
            print(f"it {it:4d} l1 {loss.item():.4f} psnr {p.item():.2f} dB")


main()
