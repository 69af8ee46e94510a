import math
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-text_image",
    "title": "The contrastive head exponentiates half-precision logits by hand; once the positive pairs' logit passes 11 the exponential exceeds 65504, becomes Inf and the loss NaN.",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["fp16-overflow"],
    "bricks": ["head", "head.affinity"],
    "first_step": 22,
    "needs": "cpu",
    "crashes": False,
}


def make_pairs(n, seed, words=40, length=8):
    rng = np.random.default_rng(seed)
    protos = np.random.default_rng(99).normal(size=(words, 3, 12, 12)).astype(np.float32)
    cap = rng.integers(0, words, size=(n, length))
    img = protos[cap].mean(1) * 2 + 0.15 * rng.normal(size=(n, 3, 12, 12)).astype(np.float32)
    return torch.from_numpy(img.astype(np.float32)), torch.from_numpy(cap)


class ImageTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.GELU(), nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.GELU(), nn.Flatten(),
            nn.Linear(32 * 36, 128), nn.GELU())
        self.proj = nn.Linear(128, dim)

    def forward(self, x):
        return F.normalize(self.proj(self.body(x)), dim=-1)


class TextTower(nn.Module):
    def __init__(self, words, dim):
        super().__init__()
        self.emb = nn.Embedding(words, 64)
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU())
        self.proj = nn.Linear(128, dim)

    def forward(self, ids):
        return F.normalize(self.proj(self.mlp(self.emb(ids)).mean(1)), dim=-1)


class Affinity(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / temperature)))

    def forward(self, a, b):
        sim = (a.half() @ b.half().t()) * self.log_scale.exp().half()
        return sim.exp()


class PairHead(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.affinity = Affinity(temperature)

    def forward(self, a, b):
        k = self.affinity(a, b)
        pos = k.diagonal().float()
        rows, cols = k.float().sum(1), k.float().sum(0)
        return -0.5 * (torch.log(pos / rows) + torch.log(pos / cols)).mean()


class DualEncoder(nn.Module):
    def __init__(self, words, dim, temperature):
        super().__init__()
        self.image, self.text = ImageTower(dim), TextTower(words, dim)
        self.head = PairHead(temperature)

    def forward(self, img, cap):
        return self.head(self.image(img), self.text(cap))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=48)
    p.add_argument("--temperature", type=float, default=0.07)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--lr", type=float, default=8e-4)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    img, cap = make_pairs(3000, 4)
    model = DualEncoder(40, a.dim, a.temperature)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 25))
    g = torch.Generator().manual_seed(8)
    for step in range(a.steps):
        i = torch.randperm(len(img), generator=g)[:a.batch]
        loss = model(img[i], cap[i])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step} nce {loss.item():.4f} scale {model.head.affinity.log_scale.exp().item():.2f}")


if __name__ == "__main__":
    main()
