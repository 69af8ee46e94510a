import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-clip-like",
    "title": "two-tower contrastive training with a learned temperature under bf16 autocast",
    "family": "other",
    "needs": "cpu",
    "trap": "logit scale grows to large values, loss depends on the batch size, activations in bf16, gradients of the scale are large",
}

torch.manual_seed(31)
STEPS, BATCH, LATENT = 240, 96, 10
W_IMG = torch.randn(LATENT, 64)
W_TXT = torch.randn(LATENT, 40)


def pairs(n):
    z = torch.randn(n, LATENT)
    img = torch.tanh(z @ W_IMG / 3) + 0.2 * torch.randn(n, 64)
    txt = torch.relu(z @ W_TXT / 3) + 0.2 * torch.randn(n, 40)
    return img, txt


class Tower(nn.Module):
    def __init__(self, n_in, dim=48):
        super().__init__()
        self.inp = nn.Linear(n_in, 128)
        self.norm = nn.LayerNorm(128)
        self.hid = nn.Linear(128, 128)
        self.out = nn.Linear(128, dim, bias=False)

    def forward(self, x):
        h = F.gelu(self.inp(x))
        h = h + F.gelu(self.hid(self.norm(h)))
        return F.normalize(self.out(h).float(), dim=-1)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Tower(64), Tower(40)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, img, txt):
        a, b = self.image(img), self.text(txt)
        return self.logit_scale.exp(), a, b


def clip_loss(scale, a, b):
    logits = scale * a @ b.t()
    y = torch.arange(len(a))
    return (F.cross_entropy(logits, y) + F.cross_entropy(logits.t(), y)) / 2


model = TwoTower()
decay = [p for p in model.parameters() if p.ndim >= 2]
rest = [p for p in model.parameters() if p.ndim < 2]
opt = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=2e-3, betas=(0.9, 0.98)
)
warm = torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, total_iters=20)
cool = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=STEPS - 20)
sched = torch.optim.lr_scheduler.SequentialLR(opt, [warm, cool], milestones=[20])
val_img, val_txt = pairs(400)

for step in range(STEPS):
    model.train()
    img, txt = pairs(BATCH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scale, a, b = model(img, txt)
    with torch.autocast("cpu", enabled=False):
        loss = clip_loss(scale.float(), a.float(), b.float())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, math.log(100))
    if (step + 1) % 40 == 0:
        model.eval()
        with torch.no_grad():
            scale, a, b = model(val_img, val_txt)
            top1 = ((a @ b.t()).argmax(1) == torch.arange(400)).float().mean().item()
        print(f"step {step + 1} loss {loss.item():.4f} scale {scale.item():.1f} retrieval {top1:.3f}")
