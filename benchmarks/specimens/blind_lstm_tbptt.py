import argparse

import torch
import torch.nn as nn

TRUTH = {
    "id": "blind-lstm-tbptt",
    "title": "LSTM language model on contiguous streams, truncated BPTT with carried hidden state",
    "family": "lstm",
    "needs": "cpu",
    "trap": "data read in order without shuffling, detached hidden state, state reset at each epoch, clipping active early",
}


def stream(n, vocab, seed):
    """Text made of words of a fixed lexicon: predictable inside a word, uncertain at its start."""
    lex = torch.Generator().manual_seed(3)
    words = [
        torch.randint(1, vocab, (int(torch.randint(3, 7, (1,), generator=lex)),), generator=lex).tolist() + [0]
        for _ in range(40)
    ]
    g = torch.Generator().manual_seed(seed)
    out = []
    while len(out) < n:
        out += words[int(torch.randint(40, (1,), generator=g))]
    return torch.tensor(out[:n])


def batchify(s, bsz):
    k = len(s) // bsz
    return s[: k * bsz].view(bsz, k)


class LM(nn.Module):
    def __init__(self, vocab, emb, hid):
        super().__init__()
        self.emb = nn.Embedding(vocab, emb)
        self.lstm = nn.LSTM(emb, hid, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(hid, vocab)

    def forward(self, x, state):
        h, state = self.lstm(self.emb(x), state)
        return self.out(self.drop(h)), state


def repackage(state):
    return None if state is None else tuple(s.detach() for s in state)


@torch.no_grad()
def evaluate(model, data, bptt, crit):
    model.eval()
    state, tot, n = None, 0.0, 0
    for i in range(0, data.shape[1] - 1, bptt):
        t = min(bptt, data.shape[1] - 1 - i)
        out, state = model(data[:, i : i + t], state)
        tot += crit(out.flatten(0, 1), data[:, i + 1 : i + 1 + t].flatten()).item() * t
        n += t
    return tot / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bptt", type=int, default=20)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--clip", type=float, default=0.5)
    a = ap.parse_args()
    torch.manual_seed(0)
    train, val = batchify(stream(64000, 30, 0), 32), batchify(stream(8000, 30, 1), 16)
    model = LM(30, 32, 96)
    crit = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    n_seg = (train.shape[1] - 1) // a.bptt
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, n_seg * a.epochs, eta_min=1e-4)
    for epoch in range(a.epochs):
        model.train()
        state, tot = None, 0.0
        for s in range(n_seg):
            i = s * a.bptt
            state = repackage(state)
            out, state = model(train[:, i : i + a.bptt], state)
            loss = crit(out.flatten(0, 1), train[:, i + 1 : i + 1 + a.bptt].flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), a.clip)
            opt.step()
            sched.step()
            tot += loss.item()
        print(f"epoch {epoch} train {tot / n_seg:.4f} val {evaluate(model, val, a.bptt, crit):.4f}")


if __name__ == "__main__":
    main()
