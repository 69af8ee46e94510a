TRUTH = {"id": "blind7-b37-curriculum-tagger", "title": "healthy sequence tagger with padding, a length curriculum, plateau scheduler and early stopping", "family": "lstm", "needs": "cpu",
         "trap": "loss rises at each curriculum stage, batch shapes change, most positions of a batch may be padding, run ends before max_epochs"}
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

PAD = 0
OPEN, CLOSE, MAX_DEPTH = 1, 2, 6


def sentence(rng, n):
    """brackets and letters; the tag of a position is the current depth (capped)"""
    d, toks, tags = 0, [], []
    for _ in range(n):
        r = rng.random()
        if r < 0.3:
            t = OPEN
            d = min(d + 1, MAX_DEPTH - 1)
        elif r < 0.55:
            t = CLOSE
            d = max(d - 1, 0)
        else:
            t = rng.randint(3, 15)
        toks.append(t)
        tags.append(d)
    return torch.tensor(toks), torch.tensor(tags)


class Tagger(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.emb = nn.Embedding(16, 16, padding_idx=PAD)
        self.lstm = nn.LSTM(16, h, batch_first=True)
        self.out = nn.Linear(h, MAX_DEPTH)

    def forward(self, x, lens):
        p = pack_padded_sequence(self.emb(x), lens, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.lstm(p)[0], batch_first=True)
        return self.out(y)


def batchify(items, bs, rng):
    items = items[:]
    rng.shuffle(items)
    for k in range(0, len(items), bs):
        xs, ys = zip(*items[k:k + bs])
        yield pad_sequence(xs, batch_first=True), pad_sequence(ys, batch_first=True, padding_value=-100), torch.tensor([len(x) for x in xs])


class EarlyStop:
    def __init__(self, patience, delta):
        self.best, self.bad, self.patience, self.delta = 1e9, 0, patience, delta

    def __call__(self, v):
        if v < self.best - self.delta:
            self.best, self.bad = v, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def main():
    torch.manual_seed(90)
    rng = random.Random(91)
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=6e-3)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.3, patience=1, threshold=0.02)
    crit = nn.CrossEntropyLoss(ignore_index=-100)
    val = [sentence(rng, rng.randint(5, 30)) for _ in range(150)]
    stop = EarlyStop(3, 5e-3)
    for epoch in range(25):
        top = min(30, 8 + 6 * (epoch // 2))
        data = [sentence(rng, rng.randint(4, top)) for _ in range(768)]
        model.train()
        tot = k = 0
        for x, y, n in batchify(data, 32, rng):
            loss = crit(model(x, n).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            tot, k = tot + loss.item(), k + 1
        model.eval()
        with torch.no_grad():
            vl = [crit(model(x, n).flatten(0, 1), y.flatten()).item() for x, y, n in batchify(val, 50, rng)]
        v = sum(vl) / len(vl)
        print(f"epoch {epoch} max_len {top} train {tot / k:.4f} val {v:.4f}")
        if top == 30:
            sched.step(v)
            if stop(v):
                print("early stop")
                break


if __name__ == "__main__":
    main()
