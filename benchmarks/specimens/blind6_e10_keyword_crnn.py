import queue
import threading

import numpy as np
import torch
from torch import nn

TRUTH = {
    "id": "blind6-e10-keyword-crnn",
    "row": None,
    "title": "prefetch thread refills a ring of two staging arrays while up to six batches that alias them wait in the queue",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["host-buffer-reuse"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

FRAMES, MELS, WORDS = 24, 16, 6
BATCH = 32


class KeywordCorpus:
    def __init__(self, n=1600, seed=0):
        rng = np.random.default_rng(seed)
        proto = np.random.default_rng(42).normal(size=(WORDS, FRAMES, MELS)).astype(np.float32)
        self.y = rng.integers(0, WORDS, n)
        gain = rng.uniform(0.7, 1.3, (n, 1, 1)).astype(np.float32)
        self.x = gain * proto[self.y] + rng.normal(scale=1.0, size=(n, FRAMES, MELS)).astype(np.float32)

    def epochs(self, seed):
        rng = np.random.default_rng(seed)
        while True:
            order = rng.permutation(len(self.y))
            for s in range(0, len(order) - BATCH + 1, BATCH):
                yield order[s:s + BATCH]


class Prefetcher(threading.Thread):
    """Gathers batches into preallocated staging memory ahead of the training loop."""

    def __init__(self, corpus, depth=6, slots=2):
        super().__init__(daemon=True)
        self.corpus = corpus
        self.staging = [np.empty((BATCH, FRAMES, MELS), np.float32) for _ in range(slots)]
        self.q = queue.Queue(maxsize=depth)
        self.stop = threading.Event()

    def run(self):
        for n, idx in enumerate(self.corpus.epochs(seed=1)):
            slot = self.staging[n % len(self.staging)]
            np.take(self.corpus.x, idx, axis=0, out=slot)
            batch = torch.from_numpy(slot), torch.as_tensor(self.corpus.y[idx])
            while not self.stop.is_set():
                try:
                    self.q.put(batch, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if self.stop.is_set():
                return

    def __iter__(self):
        while True:
            yield self.q.get()


class CRNN(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.conv = nn.Conv1d(MELS, 24, 3, padding=1)
        self.rnn = nn.LSTM(24, hidden, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(2 * hidden, WORDS)

    def forward(self, x):
        h = torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        h, _ = self.rnn(h)
        return self.fc(self.drop(h.mean(1)))


def main():
    torch.manual_seed(3)
    corpus, held = KeywordCorpus(), KeywordCorpus(400, seed=9)
    feed = Prefetcher(corpus)
    feed.start()
    net = CRNN()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    for step, (x, y) in enumerate(feed):
        if step == 300:
            break
        loss = loss_fn(net(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        if step % 30 == 0:
            print(f"{step:4d} {loss.item():.4f}")
    feed.stop.set()
    net.eval()
    with torch.no_grad():
        pred = net(torch.from_numpy(held.x)).argmax(1)
        print("held-out accuracy", (pred == torch.from_numpy(held.y)).float().mean().item())


if __name__ == "__main__":
    main()
