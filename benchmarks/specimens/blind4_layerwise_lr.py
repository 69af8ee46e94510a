import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-layerwise_lr",
    "title": "The layer-wise learning-rate factor has its exponent's sign turned round, so the embedding and early blocks train with a rate tens of times the base rate and after a first drop the loss climbs back near its start and stalls there.",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["learning-rate-too-high"],
    "bricks": ["embed", "blocks.0", "blocks.1"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class EncoderBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(a)
        return x + self.ff(self.n2(x))


class PatchClassifier(nn.Module):
    def __init__(self, patch_dim, patches, d=48, h=4, depth=5, classes=8):
        super().__init__()
        self.embed = nn.Linear(patch_dim, d)
        self.pos = nn.Parameter(0.02 * torch.randn(patches, d))
        self.blocks = nn.ModuleList(EncoderBlock(d, h) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        x = self.embed(x) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x).mean(1))


def layer_groups(model, lr, decay, wd):
    n = len(model.blocks) + 1

    def depth_of(name):
        if name.startswith(("embed", "pos")):
            return 0
        if name.startswith("blocks."):
            return int(name.split(".")[1]) + 1
        return n

    groups = {}
    for name, p in model.named_parameters():
        key = (depth_of(name), p.ndim > 1)
        groups.setdefault(key, []).append(p)
    return [{"params": ps, "lr": lr * decay ** (d - n), "weight_decay": wd if mat else 0.0} for (d, mat), ps in groups.items()]


def patches(n, seed, classes=8):
    rng = np.random.default_rng(seed)
    proto = np.random.default_rng(7).normal(size=(classes, 16, 12))
    y = rng.integers(0, classes, n)
    x = proto[y] + 1.3 * rng.normal(size=(n, 16, 12))
    return torch.tensor(x, dtype=torch.float32), torch.from_numpy(y)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--layer-decay", type=float, default=0.4)
    p.add_argument("--weight-decay", type=float, default=1e-4)
    p.add_argument("--batch", type=int, default=48)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--warmup", type=int, default=15)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = patches(2400, 1)
    xv, yv = patches(500, 2)
    model = PatchClassifier(12, 16)
    opt = torch.optim.AdamW(layer_groups(model, a.lr, a.layer_decay, a.weight_decay), lr=a.lr)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / a.warmup))
    g = torch.Generator().manual_seed(0)
    step = 0
    for epoch in range(a.epochs):
        model.train()
        for i in torch.randperm(len(x), generator=g).split(a.batch):
            loss = F.cross_entropy(model(x[i]), y[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
        model.eval()
        with torch.no_grad():
            print("val acc", (model(xv).argmax(1) == yv).float().mean().item())


if __name__ == "__main__":
    main()
