import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-simclr-half",
    "title": "The contrastive head computes exp(sim/temperature) in float16; once positive pairs are similar the value is above 65504 and becomes Inf, then NaN.",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["fp16-overflow"],
    "bricks": ["affinity"],
    "first_step": 13,
    "needs": "cpu",
    "crashes": False,
}

STEPS, BATCH, TAU = 200, 64, 0.085


class Backbone(nn.Module):
    def __init__(self, din=64, width=128):
        super().__init__()
        self.stem = nn.Linear(din, width)
        self.blocks = nn.ModuleList([
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(3)
        ])

    def forward(self, x):
        h = self.stem(x)
        for b in self.blocks:
            h = h + b(h)
        return h


class Affinity(nn.Module):
    """Pairwise affinities, kept in half precision to save memory with large batches."""

    def __init__(self, tau):
        super().__init__()
        self.tau = tau

    def forward(self, a, b):
        sim = a.half() @ b.half().T
        return torch.exp(sim / self.tau)


class SimCLR(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.projector = nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 32), nn.BatchNorm1d(32))
        self.affinity = Affinity(TAU)

    def embed(self, x):
        return F.normalize(self.projector(self.backbone(x)), dim=-1)

    def forward(self, v1, v2):
        a = self.affinity(self.embed(v1), self.embed(v2))
        pos = a.diagonal()
        p12 = pos / a.sum(1)
        p21 = pos / a.sum(0)
        return -0.5 * (p12.float().log() + p21.float().log()).mean()


def views(gen):
    latent = torch.randn(BATCH, 16, generator=gen)
    x = torch.tanh(latent @ MIX)
    return x + 0.45 * torch.randn(x.shape, generator=gen), x + 0.45 * torch.randn(x.shape, generator=gen)


torch.set_num_threads(1)
torch.manual_seed(8)
g = torch.Generator().manual_seed(80)
MIX = torch.randn(16, 64, generator=g) / 2
model = SimCLR()
opt = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=1e-4)
warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 20)
for step in range(STEPS):
    v1, v2 = views(g)
    loss = model(v1, v2)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    warm.step()
    if step % 10 == 0:
        print("step", step, "loss", round(loss.item(), 4))
