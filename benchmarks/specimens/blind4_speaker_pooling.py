import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

TRUTH = {
    "id": "blind4-speaker_pooling",
    "title": "Statistics pooling takes sqrt(E[x^2] - E[x]^2); for a silent clip the frames are constant and the difference rounds below zero, so the square root is NaN.",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["invalid-op"],
    "bricks": ["pool"],
    "first_step": 32,
    "needs": "cpu",
    "crashes": False,
}


class Utterances(Dataset):
    """Synthetic voices: a harmonic stack per speaker plus noise, gated by a voice-activity mask."""

    def __init__(self, n, speakers, length, seed):
        rng = np.random.default_rng(seed)
        f0 = np.linspace(0.02, 0.09, speakers)
        t = np.arange(length)
        self.wav = np.zeros((n, 1, length), np.float32)
        self.spk = rng.integers(0, speakers, size=n)
        for i in range(n):
            s = self.spk[i]
            w = sum(np.sin(2 * np.pi * f0[s] * k * t + rng.uniform(0, 6.28)) / (k + s % 3) for k in (1, 2, 3))
            w = w + 0.3 * rng.normal(size=length)
            energy_gate = rng.lognormal(0.0, 0.9) > 0.06
            self.wav[i, 0] = w * rng.uniform(0.5, 1.5) * energy_gate

    def __len__(self):
        return len(self.wav)

    def __getitem__(self, i):
        return torch.from_numpy(self.wav[i]), int(self.spk[i])


class TDNN(nn.Module):
    def __init__(self, cin, cout, k, dilation=1, stride=1):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, k, dilation=dilation, stride=stride)
        self.norm = nn.GroupNorm(8, cout)

    def forward(self, x):
        return F.leaky_relu(self.norm(self.conv(x)), 0.1)


class StatsPool(nn.Module):
    def forward(self, x):
        mean = x.mean(-1)
        second = x.pow(2).mean(-1)
        std = torch.sqrt(second - mean * mean)
        return torch.cat([mean, std], 1)


class XVector(nn.Module):
    def __init__(self, speakers, width=64):
        super().__init__()
        self.frames = nn.Sequential(
            TDNN(1, width, 9, stride=4), TDNN(width, width, 5), TDNN(width, width, 3, dilation=2), TDNN(width, width, 1))
        self.pool = StatsPool()
        self.embed = nn.Linear(2 * width, 64)
        self.classify = nn.Linear(64, speakers)

    def forward(self, wav):
        e = self.embed(self.pool(self.frames(wav)))
        return self.classify(F.relu(e)), e


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--speakers", type=int, default=12)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=20)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=3)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    ds = Utterances(900, a.speakers, 600, a.seed)
    loader = DataLoader(ds, a.batch_size, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(a.seed + 9))
    model = XVector(a.speakers)
    opt = torch.optim.Adam(model.parameters(), lr=a.lr)
    step = 0
    for epoch in range(a.epochs):
        hit = seen = 0
        for wav, spk in loader:
            logits, emb = model(wav)
            loss = F.cross_entropy(logits, spk) + 1e-4 * emb.pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            hit += (logits.argmax(1) == spk).sum().item()
            seen += len(spk)
            if step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} acc {hit / seen:.3f}")
            step += 1


if __name__ == "__main__":
    main()
