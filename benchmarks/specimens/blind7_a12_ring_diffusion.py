# DDPM on a 2-D mixture, small noise-prediction network.
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind7-a12-ring-diffusion",
    "row": None,
    "title": "parameters and Adam states are bfloat16 with lr 6e-5: most updates are below the rounding step and vanish",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["bf16-precision-loss"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

T = 100
torch.manual_seed(4)
betas = torch.linspace(1e-4, 0.06, T)
alpha_bar = torch.cumprod(1 - betas, 0)


def data(n):
    k = torch.randint(0, 8, (n,)) * (2 * math.pi / 8)
    return torch.stack([k.cos(), k.sin()], 1) * 1.4 + 0.05 * torch.randn(n, 2)


def time_features(t, dim=64):
    freqs = torch.exp(-math.log(1000) * torch.arange(dim // 2) / (dim // 2))
    a = t[:, None].float() * freqs
    return torch.cat([a.sin(), a.cos()], 1)


class Denoiser(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.inp = nn.Linear(2, d)
        self.temb = nn.Linear(64, d)
        self.mid = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.out = nn.Linear(d, 2)

    def forward(self, x, t):
        h = self.inp(x) + self.temb(t)
        for lin, norm in zip(self.mid, self.norms):
            h = h + F.silu(lin(norm(h)))
        return self.out(h)


dtype = torch.bfloat16
model = Denoiser().to(dtype)
opt = torch.optim.Adam(model.parameters(), lr=6e-5)


def diffusion_loss(x0):
    t = torch.randint(0, T, (len(x0),))
    ab = alpha_bar[t][:, None]
    eps = torch.randn_like(x0)
    xt = ab.sqrt() * x0 + (1 - ab).sqrt() * eps
    pred = model(xt.to(dtype), time_features(t).to(dtype))
    return F.mse_loss(pred.float(), eps)


avg = 0.0
for step in range(400):
    loss = diffusion_loss(data(256))
    opt.zero_grad()
    loss.backward()
    opt.step()
    avg += loss.item() / 50
    if (step + 1) % 50 == 0:
        print(f"step {step + 1}: {avg:.4f}")
        avg = 0.0

model.eval()
with torch.no_grad():
    print("final eps mse", sum(diffusion_loss(data(1024)).item() for _ in range(10)) / 10)
