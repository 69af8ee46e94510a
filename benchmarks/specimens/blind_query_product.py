import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-query-product",
    "title": "in-batch softmax retrieval with a learned temperature; sparse embedding table under SparseAdam, towers under AdamW",
    "family": "other",
    "needs": "cpu",
    "trap": "sparse gradients touch few rows, two optimizers, the logit scale keeps growing, early stop ends the loop before the step limit, symmetric loss starts at ln(batch)",
}

WORDS, PRODUCTS, DIM = 800, 300, 32


class Catalogue:
    """Each product has ten typical words; a query holds six words, mostly the product's own."""

    def __init__(self):
        g = torch.Generator().manual_seed(3)
        self.typical = torch.randint(0, WORDS, (PRODUCTS, 10), generator=g)
        self.attrs = torch.randn(PRODUCTS, 16, generator=g)

    def draw(self, n, g):
        p = torch.randperm(PRODUCTS, generator=g)[:n]
        pick = torch.randint(0, 10, (n, 6), generator=g)
        words = self.typical[p].gather(1, pick)
        noise = torch.rand(n, 6, generator=g) < 0.1
        words = torch.where(noise, torch.randint(0, WORDS, (n, 6), generator=g), words)
        return words, self.attrs[p] + 0.1 * torch.randn(n, 16, generator=g)


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, DIM, mode="mean", sparse=True)
        nn.init.normal_(self.words.weight, std=0.2)
        self.query = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, DIM))
        self.product = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, DIM))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.1)))

    def forward(self, words, attrs):
        q = F.normalize(self.query(self.words(words)), dim=-1)
        p = F.normalize(self.product(attrs), dim=-1)
        return self.logit_scale.clamp(max=math.log(100.0)).exp() * q @ p.t()


def clip_loss(logits):
    t = torch.arange(len(logits))
    return 0.5 * (F.cross_entropy(logits, t) + F.cross_entropy(logits.t(), t))


def main(max_steps=300, batch=96, patience=2):
    torch.manual_seed(19)
    cat = Catalogue()
    model = Retriever()
    sparse = torch.optim.SparseAdam(list(model.words.parameters()), lr=2e-2)
    dense = torch.optim.AdamW(
        [p for n, p in model.named_parameters() if not n.startswith("words")], lr=5e-3, weight_decay=1e-4
    )
    g, gv = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    val_set = [cat.draw(batch, gv) for _ in range(6)]
    best, bad = 0.0, 0
    for step in range(max_steps):
        words, attrs = cat.draw(batch, g)
        loss = clip_loss(model(words, attrs))
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        if (step + 1) % 20 == 0:
            model.eval()
            with torch.no_grad():
                r1 = sum(
                    (model(w, a).argmax(1) == torch.arange(batch)).float().mean().item() for w, a in val_set
                ) / len(val_set)
            model.train()
            print(
                f"step {step + 1} loss {loss.item():.4f} recall@1 {r1:.3f} scale {model.logit_scale.exp().item():.1f}"
            )
            best, bad = (r1, 0) if r1 > best + 0.01 else (best, bad + 1)
            if bad >= patience:
                print("early stop, best recall", round(best, 3))
                break


if __name__ == "__main__":
    main()
