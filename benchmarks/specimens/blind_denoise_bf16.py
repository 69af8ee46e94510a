import torch
import torch.nn as nn

TRUTH = {
    "id": "blind-denoise-bf16",
    "row": 20,
    "title": "the loss is multiplied by 65536 and the gradients are unscaled only for float16, the run uses bfloat16",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["loss-scale-misused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Precision:
    def __init__(self, dtype=torch.bfloat16, scale=2.0**16):
        self.dtype, self.scale = dtype, scale

    def context(self):
        return torch.autocast("cpu", dtype=self.dtype)

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self, opt):
        if self.dtype == torch.float16:
            for group in opt.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.div_(self.scale)
        opt.step()
        opt.zero_grad()


class Denoiser(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, ch, 3, padding=1), nn.SiLU(), nn.Conv2d(ch, ch, 3, padding=1), nn.SiLU())
        self.mid = nn.Sequential(nn.Conv2d(ch, ch, 3, padding=2, dilation=2), nn.SiLU())
        self.dec = nn.Conv2d(2 * ch, 1, 3, padding=1)

    def forward(self, x):
        h = self.enc(x)
        return self.dec(torch.cat([h, self.mid(h)], 1))


def clean_batch(n, g):
    ax = torch.linspace(0, 6.28, 16)
    f = 0.5 + 1.5 * torch.rand(n, 2, generator=g)
    ph = 6.28 * torch.rand(n, 2, generator=g)
    a = torch.sin(f[:, :1] * ax + ph[:, :1])
    b = torch.cos(f[:, 1:] * ax + ph[:, 1:])
    return (a[:, :, None] * b[:, None, :] * 2).unsqueeze(1)


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    prec = Precision()
    model = Denoiser()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=250)
    mse = nn.MSELoss()
    for it in range(250):
        clean = clean_batch(32, g)
        noisy = clean + 0.4 * torch.randn(clean.shape, generator=g)
        with prec.context():
            pred = model(noisy)
            loss = mse(pred.float(), clean)
        prec.backward(loss)
        prec.step(opt)
        sched.step()
        if it % 25 == 0 or it == 249:
            print(f"it {it} mse {loss.item():.5f}")


if __name__ == "__main__":
    main()
