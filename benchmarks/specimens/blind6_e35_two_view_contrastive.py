import torch
from torch import nn
import torch.nn.functional as F

TRUTH = {"id": "blind6-e35-two-view-contrastive", "title": "CLIP-like two-tower contrastive model with learned temperature under bf16 autocast, accumulation over two chunks", "family": "mlp",
         "needs": "cpu", "trap": "loss starts at ln(batch); temperature parameter with its own group and no decay; bf16 activations; two backwards per step, correctly divided"}


class Tower(nn.Module):
    def __init__(self, d_in, d=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_in, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, d))

    def forward(self, x):
        return F.normalize(self.net(x).float(), dim=-1)


class Clip(nn.Module):
    def __init__(self, da, db):
        super().__init__()
        self.a, self.b = Tower(da), Tower(db)
        self.logit_scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, xa, xb):
        s = self.logit_scale.exp().clamp(max=100)
        return s * self.a(xa) @ self.b(xb).T


torch.manual_seed(31)
wa, wb = torch.randn(10, 40), torch.randn(10, 28)


def pairs(n):
    z = torch.randn(n, 10)
    return torch.tanh(z @ wa / 3) + 0.1 * torch.randn(n, 40), torch.tanh(z @ wb / 3) + 0.1 * torch.randn(n, 28)


model = Clip(40, 28)
decay = [p for n, p in model.named_parameters() if p.ndim >= 2]
rest = [p for n, p in model.named_parameters() if p.ndim < 2]
opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.02}, {"params": rest, "weight_decay": 0.0}], lr=2e-3)
STEPS, CHUNKS = 300, 2
sched = torch.optim.lr_scheduler.SequentialLR(opt, [
    torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 20),
    torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS - 20)], [20])
for step in range(STEPS):
    opt.zero_grad()
    seen = 0.0
    for _ in range(CHUNKS):
        a, b = pairs(96)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(a, b)
        logits = logits.float()
        t = torch.arange(96)
        loss = 0.5 * (F.cross_entropy(logits, t) + F.cross_entropy(logits.T, t))
        (loss / CHUNKS).backward()
        seen += loss.item() / CHUNKS
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    sched.step()
    if step % 30 == 0 or step == STEPS - 1:
        print(f"{step} loss {seen:.3f} scale {model.logit_scale.exp().item():.1f}")

model.eval()
with torch.no_grad():
    a, b = pairs(256)
    print("top-1 retrieval", (model(a, b).argmax(1) == torch.arange(256)).float().mean().item())
