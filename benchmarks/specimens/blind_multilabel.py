import torch
from torch import nn

TRUTH = {
    "id": "blind-multilabel",
    "row": None,
    "title": "the model already ends in a sigmoid and its output goes into BCEWithLogitsLoss",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["loss-input-mismatch", "double-softmax"],
    "bricks": ["classifier.act"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class TagHead(nn.Module):
    def __init__(self, dim, tags):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, tags)
        self.act = nn.Sigmoid()

    def forward(self, h):
        return self.act(self.proj(self.norm(h)))


class SetTagger(nn.Module):
    """bag of items -> set of tags"""

    def __init__(self, vocab=200, dim=64, tags=12):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.hidden = nn.Sequential(nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim))
        self.classifier = TagHead(dim, tags)

    def forward(self, items):
        h = self.bag(items)
        return self.classifier(h + self.hidden(h))


def make(n, gen, vocab=200, tags=12):
    items = torch.randint(0, vocab, (n, 10), generator=gen)
    counts = torch.zeros(n, tags)
    counts.scatter_add_(1, items % 40 % tags, (items % 40 < 20).float())
    return items, (counts > 0).float()


def f1(pred, y):
    tp = (pred * y).sum()
    return (2 * tp / (pred.sum() + y.sum() + 1e-9)).item()


torch.manual_seed(0)
gen = torch.Generator().manual_seed(1)
model = SetTagger()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=400)
vx, vy = make(1000, gen)

for step in range(400):
    model.train()
    x, y = make(64, gen)
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if (step + 1) % 50 == 0:
        model.eval()
        with torch.no_grad():
            p = model(vx)
        print(f"step {step + 1} loss {loss.item():.4f} val {criterion(p, vy).item():.4f} f1 {f1((p > 0.5).float(), vy):.3f}")
