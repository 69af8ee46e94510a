"""Product tagging with an auxiliary cross-modal alignment term (memory queue of negatives)."""
import logging

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-a13-two-tower",
    "row": None,
    "title": "the alignment loss raises a shape error every step (queue transposed twice) and the except returns 0.0, so it never trains",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["silent-fallback", "sentinel-loss"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger(__name__)

CFG = dict(steps=300, batch=64, dim=32, queue=256, lr=2e-3, tau=0.1, align_weight=0.5, classes=8, seed=12)


class Catalogue:
    """Pairs of (image features, bag of title tokens) that share a latent."""

    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)
        self.g = g
        self.to_img = torch.randn(12, 48, generator=g)
        self.to_txt = torch.randn(12, 120, generator=g)
        self.centers = torch.randn(CFG["classes"], 12, generator=g) * 1.5

    def batch(self, n):
        y = torch.randint(0, CFG["classes"], (n,), generator=self.g)
        z = self.centers[y] + torch.randn(n, 12, generator=self.g)
        img = torch.tanh(z @ self.to_img / 3) + 0.1 * torch.randn(n, 48, generator=self.g)
        txt = (z @ self.to_txt).topk(10, dim=1).indices
        return img, txt, y


class TwoTower(nn.Module):
    def __init__(self, dim, queue, classes):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 64), nn.GELU())
        self.text = nn.EmbeddingBag(120, 64, mode="mean")
        self.image_proj = nn.Linear(64, dim)
        self.text_proj = nn.Linear(64, dim)
        self.tagger = nn.Linear(128, classes)
        self.register_buffer("queue", F.normalize(torch.randn(dim, queue), dim=0))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    def forward(self, img, txt):
        hi, ht = self.image(img), self.text(txt)
        logits = self.tagger(torch.cat([hi, F.gelu(ht)], 1))
        return logits, F.normalize(self.image_proj(hi), dim=1), F.normalize(self.text_proj(ht), dim=1)

    @torch.no_grad()
    def push(self, keys):
        p, n = int(self.ptr), keys.size(0)
        self.queue[:, p:p + n] = keys.t()
        self.ptr[0] = (p + n) % self.queue.size(1)


def alignment_loss(model, zi, zt, tau):
    try:
        pos = (zi * zt).sum(1, keepdim=True)
        neg = zi @ model.queue.t()
        logits = torch.cat([pos, neg], 1) / tau
        return F.cross_entropy(logits, torch.zeros(len(zi), dtype=torch.long))
    except RuntimeError as err:
        # queue may not be filled yet on the first iterations
        log.debug("alignment skipped: %s", err)
        return zi.new_zeros(())


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    img, txt, y = data
    logits, zi, zt = model(img, txt)
    r1 = ((zi @ zt.t()).argmax(1) == torch.arange(len(y))).float().mean()
    model.train()
    return (logits.argmax(1) == y).float().mean().item(), r1.item()


def main(cfg):
    torch.manual_seed(cfg["seed"])
    cat = Catalogue(cfg["seed"])
    val = cat.batch(256)
    model = TwoTower(cfg["dim"], cfg["queue"], cfg["classes"])
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
    for step in range(cfg["steps"]):
        img, txt, y = cat.batch(cfg["batch"])
        logits, zi, zt = model(img, txt)
        tag = F.cross_entropy(logits, y)
        align = alignment_loss(model, zi, zt, cfg["tau"])
        loss = tag + cfg["align_weight"] * align
        opt.zero_grad()
        loss.backward()
        opt.step()
        model.push(zt.detach())
        if step % 50 == 0 or step == cfg["steps"] - 1:
            acc, r1 = evaluate(model, val)
            log.info("step %3d  tag %.4f  align %.4f  acc %.3f  recall@1 %.3f", step, tag.item(), align.item(), acc, r1)


if __name__ == "__main__":
    main(CFG)
