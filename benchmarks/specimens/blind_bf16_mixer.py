import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-bf16-mixer",
    "row": 20,
    "title": "the loss is multiplied by 1024 for mixed precision and the gradients are never divided again, so every update is 1024 times too large",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["loss-scale-misused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class StaticScaler:
    def __init__(self, factor=1024.0):
        self.factor = factor

    def scale(self, loss):
        return loss * self.factor


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mlp = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.channel_mlp = nn.Sequential(nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim))

    def forward(self, x):
        x = x + self.token_mlp(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mlp(self.n2(x))


class Mixer(nn.Module):
    def __init__(self, patch=4, size=16, dim=48, classes=7):
        super().__init__()
        self.patch = patch
        tokens = (size // patch) ** 2
        self.stem = nn.Linear(patch * patch, dim)
        self.blocks = nn.Sequential(MixerBlock(tokens, dim), MixerBlock(tokens, dim))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        p = F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)
        return self.head(self.norm(self.blocks(self.stem(p))).mean(1))


def pictures(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 7, (n,), generator=g)
    proto = torch.randn(7, 1, 16, 16, generator=torch.Generator().manual_seed(31))
    sign = 0.6 + 0.8 * torch.rand(n, 1, 1, 1, generator=g)
    return proto[y] * sign * 0.35 + torch.randn(n, 1, 16, 16, generator=g), y


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x)
    model.train()
    return F.cross_entropy(logits.float(), y).item(), (logits.argmax(1) == y).float().mean().item()


def main(steps=320, batch=64):
    torch.manual_seed(4)
    torch.set_num_threads(1)
    x, y = pictures(6000, 1)
    xv, yv = pictures(700, 2)
    model = Mixer()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 30) * max(0.02, 1 - s / steps))
    scaler = StaticScaler()
    for step in range(1, steps + 1):
        i = torch.randint(0, len(y), (batch,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x[i]).float(), y[i])
        opt.zero_grad()
        scaler.scale(loss).backward()
        norm = sum(p.grad.float().pow(2).sum() for p in model.parameters()).sqrt()
        opt.step()
        sched.step()
        if step % 20 == 0:
            vl, va = evaluate(model, xv, yv)
            print(f"step {step} loss {loss.item():.4f} gnorm {norm.item():.1f} val {vl:.4f} acc {va:.3f}")


if __name__ == "__main__":
    main()
