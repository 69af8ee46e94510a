import math
import torch
from torch import nn

TRUTH = {"id": "blind6-e33-adapter-finetune", "title": "a sequence model is pretrained, frozen, and finetuned on a new task through low-rank adapters and a fresh head", "family": "other",
         "needs": "cpu", "trap": "most parameters are frozen; adapter B matrices start at zero, so A has zero gradient at the first step; two optimizers one after the other"}


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.A.T @ self.B.T)


class Mixer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tok1, self.tok2 = nn.Linear(tokens, 2 * tokens), nn.Linear(2 * tokens, tokens)
        self.ch1, self.ch2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.act = nn.GELU()

    def forward(self, x):
        h = self.n1(x).transpose(1, 2)
        x = x + self.tok2(self.act(self.tok1(h))).transpose(1, 2)
        return x + self.ch2(self.act(self.ch1(self.n2(x))))


class Net(nn.Module):
    def __init__(self, classes, tokens=12, dim=32):
        super().__init__()
        self.stem = nn.Linear(8, dim)
        self.blocks = nn.ModuleList([Mixer(tokens, dim) for _ in range(2)])
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = b(x)
        return self.head(x.mean(1))


def task(classes, seed):
    proto = torch.randn(classes, 12, 8, generator=torch.Generator().manual_seed(seed))

    def draw(n):
        y = torch.randint(0, classes, (n,))
        return proto[y] + 1.3 * torch.randn(n, 12, 8), y
    return draw


def fit(net, draw, params, lr, steps, tag):
    opt = torch.optim.AdamW(params, lr=lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, lr, total_steps=steps, pct_start=0.1)
    for s in range(steps):
        x, y = draw(64)
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if s % 30 == 0:
            print(tag, s, f"{loss.item():.4f}")
    net.eval()
    with torch.no_grad():
        x, y = draw(1000)
        print(tag, "accuracy", (net(x).argmax(1) == y).float().mean().item())
    net.train()


torch.manual_seed(9)
net = Net(10)
fit(net, task(10, 1), net.parameters(), 3e-3, 150, "pretrain")

net.requires_grad_(False)
for b in net.blocks:
    b.ch1, b.ch2 = LoRALinear(b.ch1), LoRALinear(b.ch2)
    b.tok1 = LoRALinear(b.tok1)
net.head = nn.Linear(32, 5)
trainable = [p for p in net.parameters() if p.requires_grad]
print("trainable", sum(p.numel() for p in trainable), "of", sum(p.numel() for p in net.parameters()))
fit(net, task(5, 2), trainable, 5e-3, 180, "finetune")
