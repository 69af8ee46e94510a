"""Keyword spotting: spectrogram front-end + small transformer over raw audio."""
import logging
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind5-b12-keyword-audio",
    "row": None,
    "title": "torch.stft raises on every call (old API) and the except branch returns zeros, so the model never sees the audio",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["silent-fallback"],
    "bricks": ["frontend"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

logger = logging.getLogger(__name__)
SR, DUR, WORDS = 2000, 0.5, 8


class Utterances(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(int(SR * DUR)) / SR
        self.y = torch.randint(0, WORDS, (n,), generator=g)
        f0 = 120 + 90 * (self.y // 2).float() + 10 * torch.randn(n, generator=g)
        slope = torch.where(self.y % 2 == 0, 250.0, -150.0)
        ph = 2 * math.pi * (f0[:, None] * t + 0.5 * slope[:, None] * t ** 2)
        amp = 0.4 + 0.6 * torch.rand(n, 1, generator=g)
        self.x = amp * (ph.sin() + 0.4 * (2 * ph).sin()) + 0.15 * torch.randn(n, len(t), generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class LogSpectrogram(nn.Module):
    def __init__(self, n_fft=64, hop=32):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))

    @property
    def n_bins(self):
        return self.n_fft // 2 + 1

    def forward(self, wav):
        frames = wav.shape[-1] // self.hop + 1
        try:
            s = torch.stft(wav, self.n_fft, self.hop, window=self.window)
            power = s[..., 0] ** 2 + s[..., 1] ** 2
            return torch.log(power + 1e-5).transpose(1, 2)
        except RuntimeError as exc:  # clips shorter than one window
            logger.debug("stft failed: %s", exc)
            return wav.new_zeros(wav.shape[0], frames, self.n_bins)


class KeywordModel(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.frontend = LogSpectrogram()
        self.norm = nn.LayerNorm(self.frontend.n_bins)
        self.proj = nn.Linear(self.frontend.n_bins, d)
        self.pos = nn.Parameter(0.02 * torch.randn(1, 64, d))
        layer = nn.TransformerEncoderLayer(d, 4, 80, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.classifier = nn.Linear(d, WORDS)

    def forward(self, wav):
        f = self.proj(self.norm(self.frontend(wav)))
        h = self.encoder(f + self.pos[:, :f.shape[1]])
        return self.classifier(h.mean(1))


class Trainer:
    def __init__(self, model, train, val, lr=1e-3, epochs=5):
        self.model, self.train_dl, self.val_dl, self.epochs = model, train, val, epochs
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)
        n = epochs * len(train)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, lr, total_steps=n, pct_start=0.2)

    def run(self):
        for e in range(self.epochs):
            self.model.train()
            total = 0.0
            for wav, y in self.train_dl:
                self.opt.zero_grad()
                loss = F.cross_entropy(self.model(wav), y)
                loss.backward()
                self.opt.step()
                self.sched.step()
                total += loss.item()
            print(f"epoch {e} loss {total / len(self.train_dl):.4f} acc {self.evaluate():.3f}")

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            hits = sum((self.model(w).argmax(-1) == y).sum().item() for w, y in self.val_dl)
        return hits / len(self.val_dl.dataset)


if __name__ == "__main__":
    torch.manual_seed(6)
    tr = DataLoader(Utterances(1600, 1), batch_size=32, shuffle=True)
    va = DataLoader(Utterances(320, 2), batch_size=64)
    Trainer(KeywordModel(), tr, va).run()
