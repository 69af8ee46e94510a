import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

TRUTH = {
    "id": "blind4-gestures",
    "title": "Sequences are sorted by length for bucketing, but the label array is not reordered with them, so labels no longer belong to their inputs.",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["labels-misaligned", "labels-random"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class GestureData:
    """Variable-length 3-axis traces; bucketed so that padding stays small."""

    def __init__(self, n, seed, classes=5):
        rng = np.random.default_rng(seed)
        self.traces, labels, lengths = [], [], []
        for _ in range(n):
            c = int(rng.integers(classes))
            m = int(rng.integers(10, 24))
            t = np.linspace(0, 1, m)
            base = np.stack([np.sin((c + 1) * 3 * t), np.cos((c + 1) * 3 * t), t * (c - 2) / 2], 1)
            self.traces.append(torch.tensor(base + 0.2 * rng.normal(size=(m, 3)), dtype=torch.float32))
            labels.append(c)
            lengths.append(m)
        self.labels = torch.tensor(labels)
        self.lengths = torch.tensor(lengths)
        self._bucket()

    def _bucket(self):
        order = torch.argsort(self.lengths, stable=True)
        self.traces = [self.traces[i] for i in order]
        self.lengths = self.lengths[order]

    def batches(self, size, shuffle=True):
        starts = np.arange(0, len(self.traces) - size + 1, size)
        if shuffle:
            np.random.shuffle(starts)
        for s in starts:
            sl = slice(s, s + size)
            yield pad_sequence(self.traces[sl], batch_first=True), self.lengths[sl], self.labels[sl]


class GestureLSTM(nn.Module):
    def __init__(self, hidden=32, classes=5):
        super().__init__()
        self.lstm = nn.LSTM(3, hidden, num_layers=2, batch_first=True, dropout=0.1)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(packed)
        return self.fc(h[-1])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(6)
    np.random.seed(6)
    train, test = GestureData(1400, 1), GestureData(250, 2)
    net = GestureLSTM()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    ce = nn.CrossEntropyLoss()
    for epoch in range(3):
        net.train()
        losses = []
        for x, n, y in train.batches(40):
            loss = ce(net(x, n), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            losses.append(loss.item())
        net.eval()
        with torch.no_grad():
            acc = np.mean([(net(x, n).argmax(1) == y).float().mean().item() for x, n, y in test.batches(50, False)])
        print(f"epoch {epoch} loss {np.mean(losses):.4f} test acc {acc:.3f}")


if __name__ == "__main__":
    main()
