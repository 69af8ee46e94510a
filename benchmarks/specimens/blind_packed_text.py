import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-packed-text",
    "row": None,
    "title": "the collate function sorts the sequences by length for packing but leaves the labels in the old order",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["labels-misaligned"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

TOPICS, VOCAB = 5, 120


class Reviews(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.items = []
        for _ in range(n):
            y = rng.randrange(TOPICS)
            length = rng.randint(5, 25)
            toks = [1 + y * 20 + rng.randrange(20) if rng.random() < 0.35 else 101 + rng.randrange(19) for _ in range(length)]
            self.items.append((torch.tensor(toks), y))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    seqs, labels = zip(*batch)
    labels = torch.tensor(labels)
    seqs = sorted(seqs, key=len, reverse=True)
    lengths = torch.tensor([len(s) for s in seqs])
    return pad_sequence(seqs, batch_first=True), lengths, labels


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 32, padding_idx=0)
        self.lstm = nn.LSTM(32, 48, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(96, TOPICS)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embedding(ids), lengths, batch_first=True)
        _, (h, _) = self.lstm(packed)
        return self.fc(self.drop(torch.cat([h[0], h[1]], 1)))


def run_epoch(model, loader, criterion, optimizer=None):
    model.train(optimizer is not None)
    tot = hit = cnt = 0
    with torch.set_grad_enabled(optimizer is not None):
        for ids, lengths, y in loader:
            out = model(ids, lengths)
            loss = criterion(out, y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            tot += loss.item() * len(y)
            hit += (out.argmax(1) == y).sum().item()
            cnt += len(y)
    return tot / cnt, hit / cnt


def main():
    torch.manual_seed(0)
    train = DataLoader(Reviews(1600, 0), batch_size=32, shuffle=True, collate_fn=collate)
    val = DataLoader(Reviews(320, 1), batch_size=32, collate_fn=collate)
    model = Classifier()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    crit = nn.CrossEntropyLoss()
    for epoch in range(5):
        tl, ta = run_epoch(model, train, crit, opt)
        vl, va = run_epoch(model, val, crit)
        print(f"epoch {epoch} train {tl:.4f}/{ta:.3f} val {vl:.4f}/{va:.3f}")


if __name__ == "__main__":
    main()
