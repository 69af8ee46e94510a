"""Recurrent forecaster of accumulated load, trained with a small callback framework."""
from dataclasses import dataclass

import torch
from torch import nn

TRUTH = {
    "id": "blind6-e01-load-forecaster",
    "row": None,
    "title": "the clipping callback defines after_backward, the trainer fires on_backward_end, so gradients are never clipped",
    "family": "lstm",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["grad-clip-not-applied"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    seed: int = 11
    seq_len: int = 40
    hidden: int = 48
    batch_size: int = 32
    steps: int = 300
    lr: float = 0.01
    momentum: float = 0.9
    max_grad_norm: float = 1.0
    log_every: int = 20


class Callback:
    def on_train_begin(self, trainer):
        pass

    def on_backward_end(self, trainer):
        pass

    def on_step_end(self, trainer):
        pass

    def on_train_end(self, trainer):
        pass


class ClipGradients(Callback):
    def __init__(self, max_norm):
        self.max_norm = max_norm

    def after_backward(self, trainer):
        nn.utils.clip_grad_norm_(trainer.model.parameters(), self.max_norm)


class Console(Callback):
    def __init__(self, every):
        self.every = every

    def on_train_begin(self, trainer):
        n = sum(p.numel() for p in trainer.model.parameters())
        print(f"{n} parameters, {trainer.cfg.steps} steps")

    def on_step_end(self, trainer):
        if trainer.step % self.every == 0:
            print(f"step {trainer.step:4d}  mse {trainer.loss:.4f}")

    def on_train_end(self, trainer):
        print("validation mse", trainer.validate())


class ReluRNN(nn.Module):
    """Identity-initialised ReLU recurrence."""

    def __init__(self, n_in, hidden):
        super().__init__()
        self.inp = nn.Linear(n_in, hidden)
        self.rec = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, 1)
        nn.init.eye_(self.rec.weight)
        nn.init.normal_(self.inp.weight, std=0.02)
        nn.init.zeros_(self.inp.bias)

    def forward(self, x):
        h = x.new_zeros(x.size(0), self.rec.in_features)
        drive = self.inp(x)
        for t in range(x.size(1)):
            h = torch.relu(drive[:, t] + self.rec(h))
        return self.out(h).squeeze(-1)


def make_batch(n, length, gen):
    load = torch.rand(n, length, generator=gen)
    on = (torch.rand(n, length, generator=gen) < 0.15).float()
    x = torch.stack([load, on], -1)
    y = (load * on).sum(1) / (length * 0.15) * 2
    return x, y


class Trainer:
    def __init__(self, cfg, model, callbacks):
        self.cfg, self.model, self.callbacks = cfg, model, callbacks
        self.opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, cfg.steps)
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.step, self.loss = 0, float("nan")

    def fire(self, event):
        for cb in self.callbacks:
            getattr(cb, event)(self)

    def fit(self):
        self.fire("on_train_begin")
        self.model.train()
        while self.step < self.cfg.steps:
            x, y = make_batch(self.cfg.batch_size, self.cfg.seq_len, self.gen)
            loss = nn.functional.mse_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.fire("on_backward_end")
            self.opt.step()
            self.sched.step()
            self.loss = loss.item()
            self.fire("on_step_end")
            self.step += 1
        self.fire("on_train_end")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        g = torch.Generator().manual_seed(999)
        x, y = make_batch(256, self.cfg.seq_len, g)
        v = nn.functional.mse_loss(self.model(x), y).item()
        self.model.train()
        return v


if __name__ == "__main__":
    cfg = Config()
    torch.manual_seed(cfg.seed)
    net = ReluRNN(2, cfg.hidden)
    Trainer(cfg, net, [ClipGradients(cfg.max_grad_norm), Console(cfg.log_every)]).fit()
