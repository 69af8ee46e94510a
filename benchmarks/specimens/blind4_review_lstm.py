import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import Dataset, DataLoader

TRUTH = {
    "id": "blind4-review_lstm",
    "title": "The collate function sorts the sequences of a batch by length but leaves the labels in their first order, so sequences and labels do not belong together.",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["labels-misaligned"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Reviews(Dataset):
    def __init__(self, n, vocab, topics, seed):
        rng = np.random.default_rng(seed)
        dist = np.random.default_rng(1).dirichlet(np.full(vocab - 1, 0.15), size=topics)
        self.items = []
        for _ in range(n):
            k = int(rng.integers(0, topics))
            length = int(rng.integers(6, 30))
            self.items.append((torch.from_numpy(1 + rng.choice(vocab - 1, size=length, p=dist[k])), k))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    texts, labels = zip(*batch)
    lengths = torch.tensor([len(t) for t in texts])
    lengths, order = lengths.sort(descending=True)
    texts = [texts[i] for i in order.tolist()]
    return pad_sequence(texts, batch_first=True), lengths, torch.tensor(labels)


class AttnPool(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.score = nn.Linear(d, 1)

    def forward(self, h, mask):
        s = self.score(h).squeeze(-1).masked_fill(~mask, -1e4)
        return (s.softmax(-1)[..., None] * h).sum(1)


class ReviewNet(nn.Module):
    def __init__(self, vocab, topics, d=48, h=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.rnn = nn.LSTM(d, h, batch_first=True, bidirectional=True)
        self.pool = AttnPool(2 * h)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(2 * h, topics)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.emb(ids), lengths, batch_first=True)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        mask = torch.arange(h.shape[1])[None] < lengths[:, None]
        return self.out(self.drop(self.pool(h, mask)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=200)
    p.add_argument("--topics", type=int, default=5)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=48)
    p.add_argument("--lr", type=float, default=2e-3)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tr = DataLoader(Reviews(1800, a.vocab, a.topics, 10), a.batch_size, shuffle=True, collate_fn=collate,
                    generator=torch.Generator().manual_seed(0))
    va = DataLoader(Reviews(300, a.vocab, a.topics, 11), 100, collate_fn=collate)
    model = ReviewNet(a.vocab, a.topics)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr)
    for ep in range(a.epochs):
        model.train()
        tot = n = 0
        for ids, lengths, y in tr:
            loss = F.cross_entropy(model(ids, lengths), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            tot += loss.item() * len(y)
            n += len(y)
        model.eval()
        with torch.no_grad():
            hits = sum((model(i, l).argmax(1) == y).sum().item() for i, l, y in va)
        print(f"epoch {ep} loss {tot / n:.4f} val acc {hits / 300:.3f}")


if __name__ == "__main__":
    main()
