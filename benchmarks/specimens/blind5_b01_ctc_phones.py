"""Phone recogniser: bidirectional GRU + CTC on synthetic filterbank frames."""
import argparse
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence

TRUTH = {
    "id": "blind5-b01-ctc-phones",
    "row": None,
    "title": "hand-written global clip divides by the squared norm (no square root), so gradients are over-clipped",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["grad-clip-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

N_PHONES = 10
N_MEL = 20


class Corpus:
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(77)
        self.templates = torch.randn(N_PHONES, N_MEL, generator=g)
        r = random.Random(seed)
        g2 = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            phones = [r.randrange(N_PHONES) for _ in range(r.randint(4, 7))]
            frames = []
            for p in phones:
                dur = r.randint(3, 6)
                frames.append(self.templates[p].expand(dur, -1))
            x = torch.cat(frames)
            x = x + 0.3 * torch.randn(x.shape, generator=g2)
            self.items.append((x, torch.tensor(phones) + 1))

    def __len__(self):
        return len(self.items)


def collate(items):
    xs, ys = zip(*items)
    xl = torch.tensor([len(x) for x in xs])
    yl = torch.tensor([len(y) for y in ys])
    return pad_sequence(xs, batch_first=True), xl, torch.cat(ys), yl


class PhoneNet(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.inp = nn.Sequential(nn.Linear(N_MEL, hidden), nn.ReLU())
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, N_PHONES + 1)

    def forward(self, x):
        h, _ = self.rnn(self.inp(x))
        return self.out(h).log_softmax(-1)


def clip_gradients(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    total = torch.stack([g.pow(2).sum() for g in grads]).sum()
    coef = max_norm / (total + 1e-6)
    if coef < 1.0:
        for g in grads:
            g.mul_(coef)
    return total


def greedy(lp, xl):
    hyps = []
    for b, n in enumerate(xl.tolist()):
        ids = lp[b, :n].argmax(-1).tolist()
        out, prev = [], 0
        for i in ids:
            if i != prev and i != 0:
                out.append(i)
            prev = i
        hyps.append(out)
    return hyps


def edit(a, b):
    d = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        prev, d[0] = d[0], i
        for j, y in enumerate(b, 1):
            prev, d[j] = d[j], min(d[j] + 1, d[j - 1] + 1, prev + (x != y))
    return d[-1]


def evaluate(model, corpus):
    model.eval()
    err = tot = 0
    with torch.no_grad():
        x, xl, y, yl = collate(corpus.items)
        hyps = greedy(model(x), xl)
        for h, ref in zip(hyps, y.split(yl.tolist())):
            err += edit(h, ref.tolist())
            tot += len(ref)
    model.train()
    return err / tot


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--bs", type=int, default=16)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--max-norm", type=float, default=1.0)
    a = ap.parse_args()
    torch.manual_seed(0)
    rng = random.Random(0)
    train, dev = Corpus(640, 1), Corpus(64, 2)
    model = PhoneNet()
    opt = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9)
    ctc = nn.CTCLoss(blank=0, reduction="sum")
    step = 0
    for ep in range(a.epochs):
        order = list(range(len(train)))
        rng.shuffle(order)
        for i in range(0, len(order), a.bs):
            x, xl, y, yl = collate([train.items[j] for j in order[i:i + a.bs]])
            lp = model(x).transpose(0, 1)
            loss = ctc(lp, y, xl, yl) / len(xl)
            opt.zero_grad()
            loss.backward()
            clip_gradients(list(model.parameters()), a.max_norm)
            opt.step()
            step += 1
            if step % 40 == 0:
                print(f"epoch {ep} step {step} loss {loss.item():.3f}")
        print(f"  dev PER {evaluate(model, dev):.3f}")


if __name__ == "__main__":
    main()
