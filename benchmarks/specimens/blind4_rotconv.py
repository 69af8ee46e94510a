from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-rotconv",
    "title": "Gradients of eight micro-batches are accumulated per optimizer step but the losses are not divided by eight, so the gradients are eight times too large and SGD diverges.",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["accumulation-not-normalised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class TrainConfig:
    micro_batch: int = 8
    grad_accum: int = 8
    steps: int = 80
    lr: float = 0.06
    momentum: float = 0.9


class AutoEncoder(nn.Module):
    def __init__(self, ch=12, latent=24):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, ch, 3, stride=2, padding=1), nn.SiLU(),
            nn.Conv2d(ch, 2 * ch, 3, stride=2, padding=1), nn.SiLU(),
            nn.Flatten(), nn.Linear(2 * ch * 16, latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, 2 * ch * 16), nn.SiLU(), nn.Unflatten(1, (2 * ch, 4, 4)),
            nn.Upsample(scale_factor=2), nn.Conv2d(2 * ch, ch, 3, padding=1), nn.SiLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(ch, 1, 3, padding=1),
        )
        self.angle = nn.Linear(latent, 2)

    def forward(self, x):
        z = self.encoder(x)
        return self.decoder(z), self.angle(z)


def bars(n, gen):
    th = torch.rand(n, generator=gen) * torch.pi
    g = torch.linspace(-1, 1, 16)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    d = torch.cos(th)[:, None, None] * yy - torch.sin(th)[:, None, None] * xx
    clean = torch.exp(-(d / 0.2) ** 2)[:, None] * 2 - 0.7
    target = torch.stack([torch.cos(2 * th), torch.sin(2 * th)], 1)
    return clean + 0.2 * torch.randn(clean.shape, generator=gen), clean, target


def main(cfg=TrainConfig()):
    torch.set_num_threads(1)
    torch.manual_seed(10)
    gen = torch.Generator().manual_seed(44)
    model = AutoEncoder()
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.steps)
    it = 0
    shown = 0.0
    opt.zero_grad()
    while it < cfg.steps * cfg.grad_accum:
        noisy, clean, target = bars(cfg.micro_batch, gen)
        rec, ang = model(noisy)
        loss = F.mse_loss(rec, clean) + F.mse_loss(ang, target)
        loss.backward()
        shown += loss.item() / cfg.grad_accum
        it += 1
        if it % cfg.grad_accum == 0:
            gn = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
            opt.step()
            sched.step()
            opt.zero_grad()
            k = it // cfg.grad_accum
            if k % 5 == 1:
                print(f"step {k} loss {shown:.4f} gnorm {gn:.3f}")
            shown = 0.0


if __name__ == "__main__":
    main()
