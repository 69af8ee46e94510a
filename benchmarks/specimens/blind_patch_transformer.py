"""Patch transformer on 12x12 images of textures, 20 classes."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-patch-transformer",
    "row": None,
    "title": "the classifier ends in a softmax and the loss is cross-entropy on top of it",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["double-softmax"],
    "bricks": ["classifier.2"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class PatchTransformer(nn.Module):
    def __init__(self, classes=20, dim=48, depth=2, heads=4):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, 3, stride=3)
        self.pos = nn.Parameter(torch.randn(1, 16, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.classifier = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes), nn.Softmax(dim=-1))

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        return self.classifier(self.encoder(h).mean(1))


class Textures:
    def __init__(self, seed, classes=20):
        self.g = torch.Generator().manual_seed(seed)
        self.classes = classes
        self.base = torch.randn(classes, 1, 12, 12, generator=torch.Generator().manual_seed(123))

    def next(self, n=64):
        y = torch.randint(self.classes, (n,), generator=self.g)
        return self.base[y] + 0.6 * torch.randn(n, 1, 12, 12, generator=self.g), y


def evaluate(model, source):
    model.eval()
    x, y = source.next(400)
    with torch.no_grad():
        out = model(x)
    model.train()
    return F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    steps = 300
    train, val = Textures(0), Textures(1)
    model = PatchTransformer()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=steps, pct_start=0.1)
    for step in range(1, steps + 1):
        x, y = train.next()
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 30 == 0:
            vl, va = evaluate(model, val)
            print(f"step {step} train {loss.item():.4f} val {vl:.4f} acc {va:.3f}")


if __name__ == "__main__":
    main()
