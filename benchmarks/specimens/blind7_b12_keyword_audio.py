TRUTH = {
    "id": "blind7-b12-keyword-audio",
    "row": None,
    "title": "every __getitem__ rebuilds the mel filterbank and frames the clip in Python loops, in the main process: steps wait for the loader for most of the time",
    "family": "cnn",
    "kind": "performance",
    "contracts": [],
    "root_causes": ["loader-bound"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}
import math
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SR, N, FFT, HOP, MELS = 4000, 2000, 128, 64, 16


def hz2mel(f):
    return 2595 * math.log10(1 + f / 700)


def mel_bank():
    pts = [700 * (10 ** (m / 2595) - 1) for m in np.linspace(0, hz2mel(SR / 2), MELS + 2)]
    bank = np.zeros((MELS, FFT // 2 + 1), dtype=np.float32)
    for m in range(MELS):
        for k in range(FFT // 2 + 1):
            f = k * SR / FFT
            lo, mid, hi = pts[m], pts[m + 1], pts[m + 2]
            bank[m, k] = max(0.0, min((f - lo) / (mid - lo), (hi - f) / (hi - mid)))
    return bank


class Keywords(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, 5, n)
        t = np.arange(N) / SR
        base = np.array([200, 350, 550, 800, 1200])
        sweep = np.array([300, -100, 200, -400, 100])
        jit = rng.normal(0, 15, n)
        self.wav = np.stack([
            np.sin(2 * np.pi * ((base[c] + j) * t + sweep[c] * t ** 2)) + 0.5 * rng.normal(size=N)
            for c, j in zip(self.y, jit)]).astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        w = self.wav[i]
        bank = mel_bank()
        win = np.array([0.5 - 0.5 * math.cos(2 * math.pi * k / FFT) for k in range(FFT)], dtype=np.float32)
        frames = []
        for s in range(0, N - FFT, HOP):
            spec = np.abs(np.fft.rfft(w[s:s + FFT] * win)) ** 2
            frames.append([math.log(1e-4 + float(np.dot(bank[m], spec))) for m in range(MELS)])
        f = np.array(frames, dtype=np.float32).T
        return torch.from_numpy((f - f.mean()) / (f.std() + 1e-5)).unsqueeze(0), int(self.y[i])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.fc = nn.Linear(24 * 16, 5)

    def forward(self, x):
        return self.fc(self.features(x).flatten(1))


def main():
    torch.manual_seed(0)
    loader = DataLoader(Keywords(320, 1), batch_size=16, shuffle=True)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    t0 = time.time()
    for epoch in range(4):
        ok = n = 0
        for x, y in loader:
            out = net(x)
            loss = nn.functional.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            ok += (out.argmax(1) == y).sum().item()
            n += len(y)
        print(f"epoch {epoch} loss {loss.item():.3f} acc {ok / n:.3f} {n * (epoch + 1) / (time.time() - t0):.0f} clips/s")


if __name__ == "__main__":
    main()
