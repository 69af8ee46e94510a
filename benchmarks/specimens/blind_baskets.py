"""Item-to-item recommendation from shopping baskets with sampled negatives and sparse embeddings."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-baskets",
    "title": "skip-gram style recommender: SparseAdam for the embeddings, Adam for the scorer",
    "family": "other",
    "needs": "cpu",
    "trap": "sparse gradients touch few rows per step and a part of the catalogue is never seen; two optimizers; large embedding init",
}


class Item2Vec(nn.Module):
    def __init__(self, n_items, dim=24):
        super().__init__()
        self.centre = nn.Embedding(n_items, dim, sparse=True)
        self.context = nn.Embedding(n_items, dim, sparse=True)
        self.mix = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, dim))
        self.shift = nn.Parameter(torch.zeros(()))
        nn.init.normal_(self.centre.weight, std=0.3)
        nn.init.normal_(self.context.weight, std=0.3)

    def forward(self, a, candidates):
        h = self.centre(a)
        h = h + self.mix(h)
        return torch.einsum("bd,bkd->bk", h, self.context(candidates)) + self.shift


def make_pairs(n, n_items, n_groups, gen):
    """Only the first 80 % of the catalogue was on sale in this period."""
    on_sale = int(0.8 * n_items)
    group = torch.arange(n_items) % n_groups
    a = (torch.rand(n, generator=gen) ** 2 * on_sale).long()
    same = (torch.rand(n, generator=gen) * (on_sale // n_groups - 1)).long() * n_groups + group[a]
    other = torch.randint(0, on_sale, (n,), generator=gen)
    b = torch.where(torch.rand(n, generator=gen) < 0.85, same, other)
    return a, b, on_sale


def main():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(2)
    n_items, n_groups, batch, epochs = 1000, 20, 256, 3
    a, b, on_sale = make_pairs(24000, n_items, n_groups, gen)
    a_val, b_val, _ = make_pairs(2000, n_items, n_groups, gen)
    model = Item2Vec(n_items)
    sparse = torch.optim.SparseAdam([model.centre.weight, model.context.weight], lr=2e-2)
    dense = torch.optim.Adam(list(model.mix.parameters()) + [model.shift], lr=2e-3)

    def loss_on(x, y):
        neg = torch.randint(0, on_sale, (len(x), 8))
        logits = model(x, torch.cat([y[:, None], neg], dim=1))
        target = torch.zeros_like(logits)
        target[:, 0] = 1.0
        return F.binary_cross_entropy_with_logits(logits, target)

    for epoch in range(epochs):
        model.train()
        total, n = 0.0, 0
        for idx in torch.randperm(len(a)).split(batch):
            loss = loss_on(a[idx], b[idx])
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()
            total, n = total + loss.item(), n + 1
        model.eval()
        with torch.no_grad():
            val = loss_on(a_val, b_val).item()
            scores = model(a_val[:500], torch.arange(on_sale).expand(500, -1))
            top = scores.topk(20, dim=1).indices
            purity = (top % n_groups == (a_val[:500] % n_groups)[:, None]).float().mean().item()
        print(f"epoch {epoch}: train {total / n:.4f} val {val:.4f} purity@20 {purity:.3f}")


if __name__ == "__main__":
    main()
