TRUTH = {
    "id": "blind7-b02-vit-patches",
    "row": None,
    "title": "the transformer blocks take the shortcut from x.data, so no gradient flows along the skip path and early blocks starve",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["residual-path-broken"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--depth", type=int, default=8)
    p.add_argument("--dim", type=int, default=48)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--patch", type=int, default=4)
    p.add_argument("--bs", type=int, default=32)
    p.add_argument("--iters", type=int, default=180)
    p.add_argument("--lr", type=float, default=1e-3)
    return p.parse_args()


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v)
        return self.proj(o.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.ls1 = nn.Parameter(0.2 * torch.ones(dim))
        self.ls2 = nn.Parameter(0.2 * torch.ones(dim))

    def forward(self, x):
        shortcut = x.data
        x = shortcut + self.ls1 * self.attn(self.norm1(x))
        shortcut = x.data
        x = shortcut + self.ls2 * self.mlp(self.norm2(x))
        return x


class ViT(nn.Module):
    def __init__(self, a, classes=6, img=16):
        super().__init__()
        self.embed = nn.Conv2d(1, a.dim, a.patch, a.patch)
        n = (img // a.patch) ** 2
        self.cls = nn.Parameter(torch.zeros(1, 1, a.dim))
        self.pos = nn.Parameter(torch.randn(1, n + 1, a.dim) * 0.02)
        self.blocks = nn.ModuleList(Block(a.dim, a.heads) for _ in range(a.depth))
        self.norm = nn.LayerNorm(a.dim)
        self.head = nn.Linear(a.dim, classes)
        self.apply(self.init)

    @staticmethod
    def init(m):
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, std=0.02)
            nn.init.zeros_(m.bias)

    def forward(self, im):
        x = self.embed(im).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x)[:, 0])


def render(n, gen):
    """gratings of six orientations at random phase and frequency"""
    y = torch.randint(0, 6, (n,), generator=gen)
    th = y.float() * torch.pi / 6
    f = 0.6 + 0.5 * torch.rand(n, generator=gen)
    ph = 6.283 * torch.rand(n, generator=gen)
    g = torch.arange(16).float()
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    arg = xx * th.cos().view(-1, 1, 1) + yy * th.sin().view(-1, 1, 1)
    im = torch.sin(arg * f.view(-1, 1, 1) + ph.view(-1, 1, 1))
    return (im + 1.0 * torch.randn(n, 16, 16, generator=gen)).unsqueeze(1), y


def main():
    a = parse()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    net = ViT(a)
    opt = torch.optim.AdamW(net.parameters(), lr=a.lr, weight_decay=0.05)
    warm = 20
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / warm) * (1.0 if s < warm else 1 - 0.95 * (s - warm) / (a.iters - warm)))
    vx, vy = render(256, torch.Generator().manual_seed(2))
    for it in range(a.iters):
        net.train()
        x, y = render(a.bs, gen)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        if (it + 1) % 30 == 0:
            net.eval()
            with torch.no_grad():
                acc = (net(vx).argmax(1) == vy).float().mean()
            print(f"iter {it + 1} loss {loss.item():.3f} val acc {acc:.3f}")


if __name__ == "__main__":
    main()
