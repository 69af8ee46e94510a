"""Activity recognition from wearable-sensor windows stored in compressed shards."""
import io
import time
import zlib

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind5-a12-activity-lstm",
    "row": None,
    "title": "every __getitem__ decompresses its whole shard for one window: the step waits on the loader most of the time",
    "family": "lstm",
    "kind": "performance",
    "contracts": [],
    "root_causes": ["loader-bound"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

T, CH, CLASSES, PER_SHARD = 32, 3, 5, 128


def synth_shard(rng):
    y = rng.integers(0, CLASSES, PER_SHARD)
    t = np.arange(T)[None, :, None]
    freq = (0.15 + 0.12 * y)[:, None, None]
    ph = rng.uniform(0, 6.28, (PER_SHARD, 1, CH))
    x = np.sin(freq * t + ph) + 0.4 * rng.standard_normal((PER_SHARD, T, CH))
    buf = io.BytesIO()
    np.savez(buf, x=x.astype(np.float64), y=y)
    return zlib.compress(buf.getvalue(), 6)


class ShardStore:
    def __init__(self, n_shards, seed):
        rng = np.random.default_rng(seed)
        self.blobs = [synth_shard(rng) for _ in range(n_shards)]

    def read(self, k):
        return np.load(io.BytesIO(zlib.decompress(self.blobs[k])))


class Windows(Dataset):
    def __init__(self, store):
        self.store = store

    def __len__(self):
        return len(self.store.blobs) * PER_SHARD

    def __getitem__(self, i):
        shard = self.store.read(i // PER_SHARD)
        j = i % PER_SHARD
        return torch.tensor(shard["x"][j], dtype=torch.float32), int(shard["y"][j])


class LSTMClassifier(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.lstm = nn.LSTM(CH, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, CLASSES)

    def forward(self, x):
        h, _ = self.lstm(x)
        return self.fc(h.mean(1))


def main():
    torch.manual_seed(2)
    train = DataLoader(Windows(ShardStore(10, 0)), batch_size=32, shuffle=True)
    model = LSTMClassifier()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    crit = nn.CrossEntropyLoss()
    for epoch in range(2):
        t0, hits, n = time.time(), 0, 0
        for step, (x, y) in enumerate(train):
            logits = model(x)
            loss = crit(logits, y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            hits += (logits.argmax(1) == y).sum().item()
            n += len(y)
            if step % 16 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        print(f"epoch {epoch} acc {hits / n:.3f}  {n / (time.time() - t0):.0f} windows/s")


if __name__ == "__main__":
    main()
