import argparse
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

TRUTH = {
    "id": "blind-review-gru-d",
    "row": None,
    "title": "the sequences are sorted by length for bucketing, the labels stay in the old order",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["labels-misaligned"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def synth_reviews(n, vocab, seed):
    rng = random.Random(seed)
    tone = [random.Random(w).choice([-1, 0, 0, 1]) for w in range(vocab)]
    pos = [w for w in range(2, vocab) if tone[w] > 0]
    neg = [w for w in range(2, vocab) if tone[w] < 0]
    neutral = [w for w in range(2, vocab) if tone[w] == 0]
    seqs, labels = [], []
    for _ in range(n):
        lab = rng.randrange(3)
        length = rng.randint(6, 24)
        pool = {0: neg, 1: neutral, 2: pos}[lab]
        seqs.append([rng.choice(pool) if rng.random() < 0.35 else rng.choice(neutral) for _ in range(length)])
        labels.append(lab)
    return seqs, labels


class Buckets:
    """Batches of similar length, visited in random order."""

    def __init__(self, seqs, labels, batch, seed=0):
        order = sorted(range(len(seqs)), key=lambda i: len(seqs[i]))
        self.seqs = [torch.tensor(seqs[i]) for i in order]
        self.labels = torch.tensor(labels)
        self.batch, self.rng = batch, random.Random(seed)

    def __iter__(self):
        starts = list(range(0, len(self.seqs), self.batch))
        self.rng.shuffle(starts)
        for s in starts:
            part = self.seqs[s : s + self.batch]
            lens = torch.tensor([len(p) for p in part])
            yield pad_sequence(part, batch_first=True), lens, self.labels[s : s + self.batch]

    def __len__(self):
        return (len(self.seqs) + self.batch - 1) // self.batch


class Sentiment(nn.Module):
    def __init__(self, vocab, emb=24, hid=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, emb, padding_idx=0)
        self.gru = nn.GRU(emb, hid, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(hid, 3)

    def forward(self, x, lens):
        packed = pack_padded_sequence(self.emb(x), lens, batch_first=True, enforce_sorted=False)
        _, h = self.gru(packed)
        return self.fc(self.drop(h[-1]))


def main(a):
    torch.manual_seed(a.seed)
    train = Buckets(*synth_reviews(6400, a.vocab, 1), a.batch)
    val = Buckets(*synth_reviews(960, a.vocab, 2), a.batch)
    model = Sentiment(a.vocab)
    opt = torch.optim.Adam(model.parameters(), lr=a.lr)
    ce = nn.CrossEntropyLoss()
    for epoch in range(a.epochs):
        model.train()
        tl = 0.0
        for x, n, y in train:
            opt.zero_grad()
            loss = ce(model(x, n), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            tl += loss.item()
        model.eval()
        with torch.no_grad():
            hit = sum((model(x, n).argmax(1) == y).sum().item() for x, n, y in val)
        print(f"epoch {epoch}: loss {tl / len(train):.4f} val acc {hit / 960:.3f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=200)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--seed", type=int, default=0)
    main(p.parse_args())
