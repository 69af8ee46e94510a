"""Two tasks from padded sensor sequences: remaining life (regression) and failure mode (classification)."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-telemetry",
    "title": "multi-task LSTM with learned uncertainty weights, accumulation, clipping and a length curriculum",
    "family": "lstm",
    "needs": "cpu",
    "trap": "the total loss becomes negative, its scale drifts with the learned weights, the loss rises when longer sequences enter",
}


@dataclass
class Config:
    epochs: int = 8
    micro_batch: int = 16
    accum: int = 2
    lr: float = 8e-3
    clip: float = 1.0
    hidden: int = 48
    seed: int = 13


class Sequences(Dataset):
    def __init__(self, n, max_len, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            length = int(torch.randint(8, max_len + 1, (1,), generator=g))
            mode = int(torch.randint(0, 4, (1,), generator=g))
            slope = 0.5 + torch.rand(1, generator=g)
            t = torch.arange(length).float()
            drift = slope * t / 20
            wave = torch.sin(t * (0.3 + 0.5 * mode))
            x = torch.stack([drift, wave, drift * wave], 1) + 0.1 * torch.randn(length, 3, generator=g)
            life = 1.5 - drift[-1]
            self.items.append((x, life, mode))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    xs, life, mode = zip(*batch)
    lengths = torch.tensor([len(x) for x in xs])
    return pad_sequence(xs, batch_first=True), lengths, torch.stack(life), torch.tensor(mode)


class TwoTask(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.lstm = nn.LSTM(3, hidden, batch_first=True)
        self.life = nn.Linear(hidden, 1)
        self.mode = nn.Linear(hidden, 4)
        self.log_var = nn.Parameter(torch.tensor([-1.5, -0.5]))

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(packed)
        return self.life(h[-1]).squeeze(-1), self.mode(h[-1])

    def losses(self, batch):
        x, lengths, life, mode = batch
        p_life, p_mode = self(x, lengths)
        parts = torch.stack([F.mse_loss(p_life, life), F.cross_entropy(p_mode, mode)])
        total = (torch.exp(-self.log_var) * parts + 0.5 * self.log_var).sum()
        return total, parts.detach(), (p_mode.argmax(1) == mode).float().mean()


def loader_for(epoch, cfg):
    max_len = 20 if epoch < 3 else 32
    return DataLoader(
        Sequences(1024, max_len, seed=epoch + 1), batch_size=cfg.micro_batch, shuffle=True, collate_fn=collate
    )


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = TwoTask(cfg.hidden)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    steps = cfg.epochs * (1024 // cfg.micro_batch // cfg.accum)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.02, total_iters=steps)
    held = DataLoader(Sequences(256, 32, seed=99), batch_size=64, collate_fn=collate)
    for epoch in range(cfg.epochs):
        model.train()
        mean = 0.0
        loader = loader_for(epoch, cfg)
        for k, batch in enumerate(loader):
            total, _, _ = model.losses(batch)
            (total / cfg.accum).backward()
            mean += total.item() / len(loader)
            if (k + 1) % cfg.accum == 0:
                nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
                opt.step()
                sched.step()
                opt.zero_grad()
        model.eval()
        with torch.no_grad():
            out = [model.losses(b) for b in held]
        parts = torch.stack([o[1] for o in out]).mean(0)
        acc = torch.stack([o[2] for o in out]).mean()
        print(
            f"epoch {epoch}: total {mean:+.3f} | life mse {parts[0]:.4f} mode ce {parts[1]:.4f} acc {acc:.3f} "
            f"log_var {[round(v, 2) for v in model.log_var.tolist()]}"
        )


if __name__ == "__main__":
    main()
