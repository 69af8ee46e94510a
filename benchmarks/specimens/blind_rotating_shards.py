import os
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-rotating-shards",
    "row": None,
    "title": "the token file is rewritten shorter in place while it is memory-mapped: the next read behind its end kills the process (SIGBUS)",
    "family": "lstm",
    "kind": "process",
    "contracts": [],
    "root_causes": ["crashed-by-signal"],
    "bricks": [],
    "first_step": 100,
    "needs": "cpu",
    "crashes": True,
}

PATH = "tokens.bin"
VOCAB, T, B = 50, 32, 16


def tokenise(n, seed):
    """Write n tokens of a noisy cyclic language."""
    rng = np.random.default_rng(seed)
    step = rng.choice([1, 1, 1, 2, 7], size=n)
    tok = (np.cumsum(step) % VOCAB).astype(np.uint16)
    with open(PATH, "wb") as f:
        f.write(tok.tobytes())


class TokenFile:
    def __init__(self, path, seed=0):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.rng = np.random.default_rng(seed)

    def batch(self):
        at = self.rng.integers(0, len(self.tokens) - T - 1, size=B)
        seq = np.stack([self.tokens[i:i + T + 1] for i in at]).astype(np.int64)
        seq = torch.from_numpy(seq)
        return seq[:, :-1], seq[:, 1:]


class CharLSTM(nn.Module):
    def __init__(self, d=48, h=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.lstm = nn.LSTM(d, h, batch_first=True)
        self.out = nn.Linear(h, VOCAB)

    def forward(self, x):
        return self.out(self.lstm(self.emb(x))[0])


def main():
    torch.manual_seed(0)
    tokenise(400_000, seed=0)
    source = TokenFile(PATH)
    model = CharLSTM()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(300):
        if step and step % 100 == 0:
            tokenise(60_000, seed=step)          # fresh data for the next phase
        x, y = source.batch()
        loss = F.cross_entropy(model(x).reshape(-1, VOCAB), y.reshape(-1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    os.remove(PATH)


if __name__ == "__main__":
    main()
