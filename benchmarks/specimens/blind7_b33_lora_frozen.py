"""Adapter finetuning: a small pretrained classifier is moved to a rotated domain."""
TRUTH = {"id": "blind7-b33-lora-frozen", "title": "healthy low-rank finetuning of a frozen pretrained backbone plus a new head", "family": "mlp", "needs": "cpu",
         "trap": "most parameters have requires_grad False, one LoRA factor starts at zero so the other has zero gradient at step 0, second phase has a new optimizer"}
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(60)
D, C = 24, 6
proto = torch.randn(C, D)
rot = torch.linalg.qr(torch.randn(D, D))[0]


def batch(n, moved):
    y = torch.randint(0, C, (n,))
    x = proto[y] + 0.8 * torch.randn(n, D)
    return (x @ rot if moved else x), y


class LoRALinear(nn.Module):
    def __init__(self, base, r=6):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.down), self.up) * 2.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.head = nn.Linear(D, 64), nn.Linear(64, 64), nn.Linear(64, C)

    def forward(self, x):
        return self.head(F.gelu(self.l2(F.gelu(self.l1(x)))))


def accuracy(net, moved):
    net.eval()
    with torch.no_grad():
        x, y = batch(1000, moved)
        a = (net(x).argmax(1) == y).float().mean().item()
    net.train()
    return a


def fit(net, steps, lr, moved, tag):
    params = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for s in range(steps):
        x, y = batch(64, moved)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if s % 40 == 0 or s == steps - 1:
            print(f"{tag} {s:3d} loss {loss.item():.3f}")


net = Net()
fit(net, 150, 3e-3, False, "pretrain")
print("source acc", accuracy(net, False), "target acc before", accuracy(net, True))
net.l1, net.l2 = LoRALinear(net.l1), LoRALinear(net.l2)
net.head = nn.Linear(64, C)
fit(net, 300, 4e-3, True, "adapt")
print("target acc", accuracy(net, True), "trainable", sum(p.numel() for p in net.parameters() if p.requires_grad))
