"""Train, stop, and continue from a complete checkpoint."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-resume-ok",
    "title": "proper resume: model, optimizer, scheduler, RNG state and epoch restored",
    "family": "cnn",
    "needs": "cpu",
    "trap": "a second model and optimizer in one process, load_state_dict mid-run, lr continues in the middle of a cosine",
}


class Data:
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(6, (n,), generator=g)
        t = torch.linspace(0, 1, 48)
        base = torch.stack([torch.sin(6.28 * (1 + c) * t) + 0.5 * torch.cos(6.28 * (7 - c) * t) for c in range(6)])
        shift = torch.randint(48, (n,), generator=g)
        x = torch.stack([torch.roll(base[c], int(s)) for c, s in zip(self.y.tolist(), shift.tolist())])
        self.x = (x + 0.7 * torch.randn(n, 48, generator=g)).unsqueeze(1)

    def batches(self, size, rng):
        for sel in torch.randperm(len(self.y), generator=rng).split(size):
            yield self.x[sel], self.y[sel]


class Trainer:
    path = "resume_ok.pt"

    def __init__(self, train, val, epochs):
        torch.manual_seed(0)
        self.train_data, self.val_data, self.epochs = train, val, epochs
        self.net = nn.Sequential(
            nn.Conv1d(1, 16, 7, padding=3),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(16, 32, 5, padding=2),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(32, 6),
        )
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=4e-3, weight_decay=1e-2)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, epochs * (len(train.y) // 50))
        self.rng = torch.Generator().manual_seed(9)
        self.epoch = 0

    def save(self):
        torch.save(
            {
                "net": self.net.state_dict(),
                "opt": self.opt.state_dict(),
                "sched": self.sched.state_dict(),
                "rng": self.rng.get_state(),
                "torch_rng": torch.get_rng_state(),
                "epoch": self.epoch,
            },
            self.path,
        )

    def load(self):
        s = torch.load(self.path)
        self.net.load_state_dict(s["net"])
        self.opt.load_state_dict(s["opt"])
        self.sched.load_state_dict(s["sched"])
        self.rng.set_state(s["rng"])
        torch.set_rng_state(s["torch_rng"])
        self.epoch = s["epoch"]

    def one_epoch(self):
        self.net.train()
        tot = n = 0
        for x, y in self.train_data.batches(50, self.rng):
            loss = F.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            tot, n = tot + loss.item(), n + 1
        self.net.eval()
        with torch.no_grad():
            out = self.net(self.val_data.x)
        acc = (out.argmax(1) == self.val_data.y).float().mean().item()
        print(
            f"epoch {self.epoch} train {tot / n:.4f} val {F.cross_entropy(out, self.val_data.y).item():.4f} acc {acc:.3f} lr {self.sched.get_last_lr()[0]:.5f}"
        )
        self.epoch += 1

    def run(self, until=None):
        while self.epoch < (until or self.epochs):
            self.one_epoch()
            self.save()


if __name__ == "__main__":
    train, val = Data(2500, 0), Data(600, 1)
    Trainer(train, val, 8).run(until=4)
    t = Trainer(train, val, 8)
    t.load()
    print("continuing at epoch", t.epoch)
    t.run()
    os.remove(Trainer.path)
