import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-sparsewords",
    "title": "Healthy bag-of-words tagger with sparse embedding gradients and two optimizers.",
    "family": "other",
    "needs": "cpu",
    "trap": "sparse gradients touch only a few rows of a large table per step, most rows never move, SparseAdam has a ten times higher learning rate than the dense optimizer",
}


class Tagger(nn.Module):
    def __init__(self, vocab, d, tags):
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, d, mode="mean", sparse=True)
        nn.init.normal_(self.words.weight, std=0.1)
        self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 96), nn.ReLU(), nn.Linear(96, tags))

    def forward(self, ids, offsets):
        return self.mlp(self.words(ids, offsets))


class Stream:
    def __init__(self, vocab, tags, seed):
        self.g = torch.Generator().manual_seed(seed)
        w = 1 / torch.arange(1, vocab + 1).float()
        self.freq = w / w.sum()
        self.owner = torch.randint(0, tags, (vocab,), generator=torch.Generator().manual_seed(99))
        self.tags = tags

    def batch(self, n):
        lens = torch.randint(5, 13, (n,), generator=self.g)
        ids = torch.multinomial(self.freq, int(lens.sum()), replacement=True, generator=self.g)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lens.cumsum(0)[:-1]])
        doc = torch.repeat_interleave(torch.arange(n), lens)
        y = torch.zeros(n, self.tags)
        y[doc, self.owner[ids]] = 1.0
        return ids, offsets, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=20000)
    ap.add_argument("--dim", type=int, default=32)
    ap.add_argument("--tags", type=int, default=10)
    ap.add_argument("--iters", type=int, default=200)
    a = ap.parse_args([])
    torch.set_num_threads(1)
    torch.manual_seed(80)
    net = Tagger(a.vocab, a.dim, a.tags)
    sparse = torch.optim.SparseAdam(list(net.words.parameters()), lr=2e-2)
    dense = torch.optim.Adam(net.mlp.parameters(), lr=2e-3)
    train, test = Stream(a.vocab, a.tags, 1), Stream(a.vocab, a.tags, 2)
    ids_t, off_t, y_t = test.batch(500)
    for i in range(a.iters):
        ids, off, y = train.batch(96)
        loss = F.binary_cross_entropy_with_logits(net(ids, off), y)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        if i % 25 == 0 or i == a.iters - 1:
            with torch.no_grad():
                p = net(ids_t, off_t) > 0
                acc = (p == (y_t > 0)).float().mean().item()
            print(f"{i} loss {loss.item():.4f} tag acc {acc:.3f}")


main()
