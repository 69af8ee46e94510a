"""Pre-train a small encoder, then adapt it with low-rank adapters; the base stays frozen."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind5-a33-lora-transfer", "title": "LoRA adapters and a new head on a frozen pre-trained encoder, label smoothing",
           "family": "mlp", "needs": "cpu",
           "trap": "most parameters frozen, zero-initialised B matrices so A has zero gradient at first, label smoothing floors the loss"}

torch.manual_seed(9)
D, H = 20, 96


class Encoder(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(D, H), nn.Linear(H, H), nn.Linear(H, H)
        self.norm = nn.LayerNorm(H)
        self.head = nn.Linear(H, classes)

    def forward(self, x):
        h = F.gelu(self.fc1(x))
        h = h + F.gelu(self.fc2(h))
        h = h + F.gelu(self.fc3(h))
        return self.head(self.norm(h))


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear, r=8, alpha=16):
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.A.t() @ self.B.t()) * self.scale


class Task:
    def __init__(self, classes, shift):
        self.teacher = nn.Sequential(nn.Linear(D, 40), nn.Tanh(), nn.Linear(40, classes))
        with torch.no_grad():
            self.teacher[0].weight.normal_(0, 0.2)
            self.teacher[2].weight.normal_(0, 1.0)
        self.shift = shift

    @torch.no_grad()
    def batch(self, n):
        x = torch.randn(n, D) + self.shift
        return x, self.teacher(x).argmax(1)


def accuracy(model, task):
    model.eval()
    with torch.no_grad():
        x, y = task.batch(1000)
        acc = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return acc


def fit(model, task, params, steps, lr, tag, smoothing=0.0):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for s in range(steps):
        x, y = task.batch(96)
        loss = F.cross_entropy(model(x), y, label_smoothing=smoothing)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if s % 50 == 0 or s == steps - 1:
            print(f"{tag} {s:3d} loss {loss.item():.4f} acc {accuracy(model, task):.3f}")


src, dst = Task(6, 0.0), Task(4, 0.3)
model = Encoder(6)
fit(model, src, model.parameters(), 250, 3e-3, "pretrain")

for p in model.parameters():
    p.requires_grad_(False)
for name in ("fc1", "fc2", "fc3"):
    setattr(model, name, LoRA(getattr(model, name)))
model.head = nn.Linear(H, 4)
trainable = [p for p in model.parameters() if p.requires_grad]
print(f"trainable {sum(p.numel() for p in trainable)} of {sum(p.numel() for p in model.parameters())}")
fit(model, dst, trainable, 300, 3e-3, "adapt", smoothing=0.1)
