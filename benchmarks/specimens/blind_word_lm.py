"""Word-level language model on a synthetic corpus, truncated BPTT."""

import argparse
import math
import time

import torch
import torch.nn as nn

TRUTH = {
    "id": "blind-word-lm",
    "row": None,
    "title": "gradients are clipped after optimizer.step(), so the clip never acts on an update",
    "family": "lstm",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["grad-clip-not-applied"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout=0.1):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid, self.nlayers = nhid, nlayers
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, x, hidden):
        emb = self.drop(self.encoder(x))
        out, hidden = self.rnn(emb, hidden)
        return self.decoder(self.drop(out)), hidden

    def init_hidden(self, bsz):
        w = next(self.parameters())
        return (w.new_zeros(self.nlayers, bsz, self.nhid), w.new_zeros(self.nlayers, bsz, self.nhid))


def make_corpus(ntoken, length, seed=0):
    g = torch.Generator().manual_seed(seed)
    succ = torch.randint(0, ntoken, (ntoken, 3), generator=g)
    pick = torch.multinomial(torch.tensor([0.75, 0.18, 0.07]), length, True, generator=g)
    out = torch.empty(length, dtype=torch.long)
    cur = 0
    for i in range(length):
        cur = int(succ[cur, pick[i]])
        out[i] = cur
    return out


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data[: nbatch * bsz].view(bsz, -1).t().contiguous()


def repackage(h):
    return tuple(v.detach() for v in h)


def get_batch(source, i, bptt):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].reshape(-1)


@torch.no_grad()
def evaluate(model, source, criterion, bptt, ntoken):
    model.eval()
    total, hidden = 0.0, model.init_hidden(source.size(1))
    for i in range(0, source.size(0) - 1, bptt):
        x, y = get_batch(source, i, bptt)
        out, hidden = model(x, hidden)
        total += len(x) * criterion(out.view(-1, ntoken), y).item()
    return total / (len(source) - 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=30.0)
    ap.add_argument("--clip", type=float, default=0.25)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--bptt", type=int, default=30)
    ap.add_argument("--batch_size", type=int, default=20)
    args = ap.parse_args()

    torch.manual_seed(1111)
    ntoken = 120
    corpus = make_corpus(ntoken, 30000)
    train = batchify(corpus[:27000], args.batch_size)
    valid = batchify(corpus[27000:], 10)

    model = RNNModel(ntoken, 64, 96, 2)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

    for epoch in range(1, args.epochs + 1):
        model.train()
        t0, running = time.time(), 0.0
        hidden = model.init_hidden(args.batch_size)
        for n, i in enumerate(range(0, train.size(0) - 1, args.bptt)):
            x, y = get_batch(train, i, args.bptt)
            hidden = repackage(hidden)
            optimizer.zero_grad()
            out, hidden = model(x, hidden)
            loss = criterion(out.view(-1, ntoken), y)
            loss.backward()
            optimizer.step()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            running += loss.item()
            if (n + 1) % 20 == 0:
                print(f"| epoch {epoch} | batch {n + 1:4d} | loss {running / 20:7.3f} | {time.time() - t0:.1f}s")
                running = 0.0
        val = evaluate(model, valid, criterion, args.bptt, ntoken)
        print(f"| end of epoch {epoch} | valid loss {val:.3f} | valid ppl {math.exp(min(val, 50)):.2f}")


if __name__ == "__main__":
    main()
