import random
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-tagger-padded",
    "title": "bi-LSTM tagger, micro-batches of 4 with padding, ignore_index, label smoothing and correct 4-fold accumulation",
    "family": "lstm",
    "needs": "cpu",
    "trap": "label smoothing keeps the loss well above zero, much padding, tiny batches, several backwards per step, padding row of the embedding never moves",
}

PAD, IGNORE = 0, -100


@dataclass
class Args:
    vocab: int = 80
    tags: int = 7
    dim: int = 40
    hidden: int = 48
    micro: int = 4
    accumulate: int = 4
    epochs: int = 2
    lr: float = 8e-3
    smoothing: float = 0.1


class Sentences(Dataset):
    """The tag depends on the token's class and on the class of its left neighbour."""

    def __init__(self, n, args, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            toks = [rng.randrange(1, args.vocab) for _ in range(rng.choice([3, 4, 5, 8, 12, 20]))]
            tags, prev = [], 0
            for t in toks:
                tags.append((t % 4 + 2 * (prev % 3)) % args.tags)
                prev = t
            self.rows.append((torch.tensor(toks), torch.tensor(tags)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    x = pad_sequence([r[0] for r in rows], batch_first=True, padding_value=PAD)
    y = pad_sequence([r[1] for r in rows], batch_first=True, padding_value=IGNORE)
    return x, y, torch.tensor([len(r[0]) for r in rows])


class Tagger(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.dim, padding_idx=PAD)
        self.lstm = nn.LSTM(a.dim, a.hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * a.hidden, a.tags)

    def forward(self, x, lengths):
        p = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.lstm(p)[0], batch_first=True)
        return self.out(h)


def evaluate(model, loader):
    model.eval()
    ok = n = 0
    with torch.no_grad():
        for x, y, ln in loader:
            m = y != IGNORE
            ok += (model(x, ln).argmax(-1) == y)[m].sum().item()
            n += m.sum().item()
    model.train()
    return ok / n


def main():
    a = Args()
    torch.manual_seed(14)
    train = DataLoader(Sentences(1600, a, 1), batch_size=a.micro, shuffle=True, collate_fn=collate, drop_last=True)
    val = DataLoader(Sentences(200, a, 2), batch_size=50, collate_fn=collate)
    model = Tagger(a)
    crit = nn.CrossEntropyLoss(ignore_index=IGNORE, label_smoothing=a.smoothing, reduction="sum")
    opt = torch.optim.Adam(model.parameters(), lr=a.lr)
    updates = a.epochs * (len(train) // a.accumulate)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=updates)
    done = 0
    for epoch in range(a.epochs):
        group = []
        for batch in train:
            group.append(batch)
            if len(group) < a.accumulate:
                continue
            n_tok = sum(int(ln.sum()) for _, _, ln in group)
            opt.zero_grad()
            total = 0.0
            for x, y, ln in group:
                loss = crit(model(x, ln).flatten(0, 1), y.flatten()) / n_tok
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            group = []
            if done % 50 == 0:
                print(f"update {done} loss {total:.4f}")
            done += 1
        print(f"epoch {epoch} tag accuracy {evaluate(model, val):.3f}")


if __name__ == "__main__":
    main()
