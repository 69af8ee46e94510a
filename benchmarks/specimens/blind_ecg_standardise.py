"""1-D CNN on short ECG-like traces; every trace is standardised on its own in the collate function."""
import math
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-ecg-standardise",
    "row": None,
    "title": "a trace of a disconnected lead is constant; standardising it divides by zero and the batch holds NaN",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["data-nonfinite"],
    "bricks": [],
    "first_step": 97,
    "needs": "cpu",
    "crashes": False,
}


class Traces(Dataset):
    def __init__(self, n, seed, disconnected=()):
        g = torch.Generator().manual_seed(seed)
        t = torch.linspace(0, 6 * math.pi, 96)
        self.label = torch.randint(0, 4, (n,), generator=g)
        freq = (1 + self.label.float() * 0.4).unsqueeze(1)
        phase = 6.28 * torch.rand(n, 1, generator=g)
        gain = 0.2 + 3 * torch.rand(n, 1, generator=g)
        self.wave = gain * (torch.sin(freq * t + phase) + 0.4 * torch.randn(n, 96, generator=g)) + 5 * torch.randn(n, 1, generator=g)
        for i in disconnected:
            self.wave[i] = 0.0

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.wave[i], self.label[i]


def standardise(batch):
    x = torch.stack([b[0] for b in batch])
    y = torch.stack([b[1] for b in batch])
    x = (x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True)
    return x.unsqueeze(1), y


def make_model():
    def stage(i, o):
        return [nn.Conv1d(i, o, 7, padding=3), nn.GroupNorm(4, o), nn.SiLU(), nn.AvgPool1d(2)]
    return nn.Sequential(*stage(1, 16), *stage(16, 32), *stage(32, 32), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, 4))


def accuracy(model, loader):
    model.eval()
    n = k = 0
    with torch.no_grad():
        for x, y in loader:
            k += (model(x).argmax(1) == y).sum().item()
            n += len(y)
    model.train()
    return k / n


if __name__ == "__main__":
    torch.manual_seed(8)
    train = DataLoader(Traces(3000, 1, disconnected=[504]), batch_size=20, shuffle=True, collate_fn=standardise)
    test = DataLoader(Traces(400, 2), batch_size=100, collate_fn=standardise)
    model = make_model()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    step = 0
    for epoch in range(2):
        for x, y in train:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            if step % 15 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1
        print(f"epoch {epoch} accuracy {accuracy(model, test):.3f}")
