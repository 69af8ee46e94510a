from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-missing-values",
    "title": "GRU on clinical-like series of ragged length, where missing readings are NaN in the batch and are replaced by a learned value inside the model",
    "family": "lstm",
    "needs": "cpu",
    "trap": "the batches hold NaN by design, and padding",
}


@dataclass
class Cfg:
    n: int = 3000
    channels: int = 5
    hidden: int = 48
    batch: int = 50
    epochs: int = 6
    lr: float = 4e-3
    missing: float = 0.25


class Series(Dataset):
    def __init__(self, cfg, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        w = torch.tensor([1.0, -0.8, 0.6, 0.5, -0.4])
        for _ in range(n):
            length = int(torch.randint(8, 21, (1,), generator=g))
            level = torch.randn(cfg.channels, generator=g)
            x = level + 0.4 * torch.randn(length, cfg.channels, generator=g)
            y = (level * w).sum() + 0.5 * torch.tanh(2 * level[0] * level[1])
            x[torch.rand(length, cfg.channels, generator=g) < cfg.missing] = float("nan")
            self.items.append((x, y))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    xs, ys = zip(*items)
    lengths = torch.tensor([len(x) for x in xs])
    return nn.utils.rnn.pad_sequence(xs, batch_first=True), lengths, torch.stack(ys)


class Imputer(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fill = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        seen = ~torch.isnan(x)
        return torch.cat([torch.where(seen, x, self.fill), seen.float()], -1)


class Regressor(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.imputer = Imputer(cfg.channels)
        self.gru = nn.GRU(2 * cfg.channels, cfg.hidden, batch_first=True)
        self.head = nn.Linear(cfg.hidden, 1)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.imputer(x), lengths, batch_first=True, enforce_sorted=False)
        _, h = self.gru(packed)
        return self.head(h[-1]).squeeze(-1)


def main(cfg=Cfg()):
    torch.manual_seed(6)
    torch.set_num_threads(1)
    train = DataLoader(Series(cfg, cfg.n, 1), batch_size=cfg.batch, shuffle=True, collate_fn=collate)
    val = DataLoader(Series(cfg, 500, 2), batch_size=250, collate_fn=collate)
    net = Regressor(cfg)
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs * len(train))
    for epoch in range(cfg.epochs):
        net.train()
        total = 0.0
        for x, lengths, y in train:
            loss = nn.functional.smooth_l1_loss(net(x, lengths), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            sched.step()
            total += loss.item()
        net.eval()
        with torch.no_grad():
            v = sum(nn.functional.smooth_l1_loss(net(x, l), y).item() for x, l, y in val) / len(val)
        print(f"epoch {epoch} train {total / len(train):.4f} val {v:.4f}")


if __name__ == "__main__":
    main()
