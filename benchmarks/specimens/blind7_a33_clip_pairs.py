"""Image/caption style contrastive alignment with a learned temperature and early stopping on retrieval."""
import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind7-a33-clip-pairs", "title": "healthy CLIP-like two-tower training, learned temperature, early stopping", "family": "other",
         "needs": "cpu", "trap": "temperature is a lone scalar parameter whose gradient is unlike the others; the run stops before its last epoch"}

torch.manual_seed(1)
LATENT = 12
proj_a, proj_b = torch.randn(LATENT, 40), torch.randn(LATENT, 25)


def pairs(n):
    z = torch.randn(n, LATENT)
    return torch.tanh(z @ proj_a / 3) + 0.45 * torch.randn(n, 40), torch.tanh(z @ proj_b / 3) + 0.45 * torch.randn(n, 25)


class Tower(nn.Module):
    def __init__(self, d_in):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_in, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 32))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class Dual(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Tower(40), Tower(25)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.1)))

    def forward(self, a, b):
        return self.log_scale.exp().clamp(max=100) * self.image(a) @ self.text(b).t()


def contrastive(logits):
    t = torch.arange(len(logits))
    return 0.5 * (F.cross_entropy(logits, t) + F.cross_entropy(logits.t(), t))


train, val = pairs(6400), pairs(300)
model = Dual()
decay = [p for p in model.parameters() if p.ndim > 1]
rest = [p for p in model.parameters() if p.ndim <= 1]
opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=2e-3)
best, best_state, bad, patience = 0.0, None, 0, 3
for epoch in range(30):
    model.train()
    order = torch.randperm(6400)
    for i in range(0, 6400, 256):
        idx = order[i:i + 256]
        loss = contrastive(model(train[0][idx], train[1][idx]))
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        r1 = (model(*val).argmax(1) == torch.arange(300)).float().mean().item()
    print(f"epoch {epoch} loss {loss.item():.4f} R@1 {r1:.3f} scale {model.log_scale.exp().item():.2f}")
    if r1 > best + 0.002:
        best, best_state, bad = r1, copy.deepcopy(model.state_dict()), 0
    else:
        bad += 1
        if bad >= patience:
            print("early stop")
            break
model.load_state_dict(best_state)
