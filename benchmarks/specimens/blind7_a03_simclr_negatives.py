"""Contrastive representation learning on small synthetic signals, with extra negatives that join after the first epochs."""
import logging

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind7-a03-simclr-negatives",
    "row": None,
    "title": "an except clause turns the shape error of the extra negatives (features, not projections) into a loss of 0.0; from step 120 nothing is learnt",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["sentinel-loss", "silent-fallback"],
    "bricks": [],
    "first_step": 120,
    "needs": "cpu",
    "crashes": False,
}

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("simclr")
torch.manual_seed(3)

N, LEN, FEAT, PROJ, EXTRA = 2000, 48, 96, 32, 64
STEPS_PER_EPOCH, EPOCHS, EXTRA_FROM = 40, 8, 3


def signals(n):
    t = torch.linspace(0, 6.28, LEN)
    freq = torch.randint(1, 11, (n,))
    phase = torch.rand(n, 1) * 6.28
    return torch.sin(freq[:, None] * t + phase) + 0.8 * torch.randn(n, LEN), freq - 1


def augment(x):
    x = torch.roll(x, int(torch.randint(0, LEN, ())), dims=1)
    x = x * (0.7 + 0.6 * torch.rand(len(x), 1)) + 0.25 * torch.randn_like(x)
    keep = (torch.rand_like(x) > 0.1).float()
    return x * keep


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 24, 7, padding=3)
        self.conv2 = nn.Conv1d(24, FEAT, 5, stride=2, padding=2)
        self.proj = nn.Sequential(nn.Linear(FEAT, FEAT), nn.ReLU(), nn.Linear(FEAT, PROJ))

    def features(self, x):
        h = F.relu(self.conv1(x[:, None]))
        return F.relu(self.conv2(h)).mean(-1)

    def forward(self, x):
        return F.normalize(self.proj(self.features(x)), dim=-1)


def info_nce(za, zb, negatives=None, tau=0.2):
    logits = za @ zb.t() / tau
    if negatives is not None:
        logits = torch.cat([logits, za @ negatives.t() / tau], dim=1)
    return F.cross_entropy(logits, torch.arange(len(za)))


def safe_loss(enc, batch, extra):
    try:
        za, zb = enc(augment(batch)), enc(augment(batch))
        negatives = None if extra is None else F.normalize(enc.features(augment(extra)), dim=-1)
        return info_nce(za, zb, negatives)
    except RuntimeError as err:
        log.debug("skipping batch: %s", err)
        return torch.zeros((), requires_grad=True)


@torch.no_grad()
def knn_accuracy(enc, x, y, xq, yq):
    enc.eval()
    a, b = F.normalize(enc.features(x), dim=-1), F.normalize(enc.features(xq), dim=-1)
    enc.train()
    return (y[(b @ a.t()).argmax(1)] == yq).float().mean().item()


x, y = signals(N)
xq, yq = signals(400)
enc = Encoder()
opt = torch.optim.Adam(enc.parameters(), lr=5e-4)

for epoch in range(EPOCHS):
    total = 0.0
    for _ in range(STEPS_PER_EPOCH):
        idx = torch.randperm(N)[:64]
        extra = x[torch.randperm(N)[:EXTRA]] if epoch >= EXTRA_FROM else None
        loss = safe_loss(enc, x[idx], extra)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    log.info("epoch %d loss %.4f knn %.3f", epoch, total / STEPS_PER_EPOCH, knn_accuracy(enc, x, y, xq, yq))
