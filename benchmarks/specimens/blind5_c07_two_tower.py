from __future__ import annotations

import logging
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
log = logging.getLogger("two-tower")

TRUTH = {
    "id": "blind5-c07-two-tower",
    "row": None,
    "title": "similarities go through softmax inside the model and then again through cross_entropy",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["double-softmax"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

CONCEPTS, IMG_DIM, VOCAB, WORDS = 1500, 48, 120, 10


class World:
    """Every concept has an image prototype and a bag of words."""

    def __init__(self, seed: int):
        g = torch.Generator().manual_seed(seed)
        latent = torch.randn(CONCEPTS, 12, generator=g)
        self.proto = latent @ torch.randn(12, IMG_DIM, generator=g) / 12 ** 0.5
        word_scores = latent @ torch.randn(12, VOCAB, generator=g) / 12 ** 0.5
        self.word_probs = (2.0 * word_scores).softmax(-1)

    def sample(self, n: int):
        c = torch.randperm(CONCEPTS)[:n]
        img = self.proto[c] + 0.4 * torch.randn(n, IMG_DIM)
        txt = torch.multinomial(self.word_probs[c], WORDS, replacement=True)
        return img, txt


class ImageTower(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(IMG_DIM, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class TextTower(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.words = nn.Embedding(VOCAB, 64)
        self.mix = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(64, dim)

    def forward(self, t):
        return F.normalize(self.out(self.mix(self.words(t)).mean(1)), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, dim: int = 32):
        super().__init__()
        self.image, self.text = ImageTower(dim), TextTower(dim)
        self.log_scale = nn.Parameter(torch.tensor(math.log(5.0)))

    def forward(self, img, txt):
        scores = self.log_scale.exp().clamp(max=100) * self.image(img) @ self.text(txt).t()
        return scores.softmax(dim=1), scores.t().softmax(dim=1)


def contrastive_loss(i2t, t2i):
    labels = torch.arange(len(i2t))
    return (F.cross_entropy(i2t, labels) + F.cross_entropy(t2i, labels)) / 2


@torch.no_grad()
def retrieval(model, world, n=200):
    model.eval()
    i2t, _ = model(*world.sample(n))
    model.train()
    rank = (i2t >= i2t.diagonal()[:, None]).sum(1)
    return (rank == 1).float().mean().item(), (rank <= 5).float().mean().item()


def train(steps=140, batch=192, lr=0.2):
    torch.manual_seed(17)
    world, model = World(4), TwoTower()
    opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
    warm = 10
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: (s + 1) / warm if s < warm else 0.5 * (1 + math.cos(math.pi * (s - warm) / (steps - warm))))
    for step in range(steps):
        loss = contrastive_loss(*model(*world.sample(batch)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 20 == 0 or step == steps - 1:
            r1, r5 = retrieval(model, world)
            log.info("step %d loss %.4f scale %.2f R@1 %.3f R@5 %.3f", step, loss.item(), model.log_scale.exp().item(), r1, r5)


if __name__ == "__main__":
    train()
