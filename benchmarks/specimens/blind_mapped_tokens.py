import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-mapped-tokens",
    "row": None,
    "title": "the token file is rewritten in place (and shorter) while the training process still maps it: reading past its end kills the process with SIGBUS",
    "family": "lstm",
    "kind": "process",
    "contracts": [],
    "root_causes": ["crashed-by-signal"],
    "bricks": [],
    "first_step": 150,
    "needs": "cpu",
    "crashes": True,
}

PATH, VOCAB, SEQ, BATCH = "tokens.bin", 64, 32, 24


def write_tokens(path, n, seed):
    rng = np.random.default_rng(seed)
    jump = rng.integers(1, 5, size=n)
    tokens = (np.cumsum(jump * (rng.random(n) < 0.95)) % VOCAB).astype(np.uint16)
    with open(path, "wb") as f:
        f.write(tokens.tobytes())


class TokenReader:
    def __init__(self, path, seed):
        self.data = np.memmap(path, dtype=np.uint16, mode="r")
        self.rng = np.random.default_rng(seed)

    def batch(self):
        at = self.rng.integers(0, len(self.data) - SEQ - 1, size=BATCH)
        rows = np.stack([self.data[a : a + SEQ + 1] for a in at]).astype(np.int64)
        rows = torch.from_numpy(rows)
        return rows[:, :-1], rows[:, 1:]


class TokenLSTM(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.LSTM(dim, 96, batch_first=True)
        self.head = nn.Linear(96, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    write_tokens(PATH, 1_500_000, seed=1)
    reader = TokenReader(PATH, seed=2)
    model = TokenLSTM()
    total, refresh_every = 400, 150
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)
    for step in range(total):
        if step > 0 and step % refresh_every == 0:
            # new day, new crawl
            write_tokens(PATH, 200_000, seed=1 + step)
        x, y = reader.batch()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    print("finished", flush=True)


if __name__ == "__main__":
    main()
