"""Adding problem with an identity-initialised ReLU RNN."""
from dataclasses import dataclass

import torch
import torch.nn as nn

TRUTH = {
    "id": "blind5-a01-adding-irnn",
    "row": None,
    "title": "clip_grad_norm_ is called after optimizer.step(), so no update is ever clipped and the IRNN blows up",
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
    seq_len: int = 60
    hidden: int = 64
    batch: int = 64
    steps: int = 400
    lr: float = 0.02
    momentum: float = 0.9
    max_grad_norm: float = 1.0
    log_every: int = 40
    seed: int = 3


class IRNN(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.RNN(2, hidden, nonlinearity="relu", batch_first=True)
        self.out = nn.Linear(hidden, 1)
        with torch.no_grad():
            self.rnn.weight_hh_l0.copy_(torch.eye(hidden))
            self.rnn.bias_hh_l0.zero_()
            self.rnn.bias_ih_l0.zero_()
            self.rnn.weight_ih_l0.normal_(0, 0.02)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h[:, -1]).squeeze(-1)


def make_batch(cfg):
    vals = torch.rand(cfg.batch, cfg.seq_len)
    marks = torch.zeros_like(vals)
    half = cfg.seq_len // 2
    i = torch.randint(0, half, (cfg.batch,))
    j = torch.randint(half, cfg.seq_len, (cfg.batch,))
    r = torch.arange(cfg.batch)
    marks[r, i] = 1.0
    marks[r, j] = 1.0
    return torch.stack([vals, marks], -1), (vals * marks).sum(1)


class Runner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = IRNN(cfg.hidden)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=cfg.momentum)

    def train_step(self):
        x, y = make_batch(self.cfg)
        self.opt.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.opt.step()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.max_grad_norm)
        return loss.item(), norm.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        errs = []
        for _ in range(5):
            x, y = make_batch(self.cfg)
            errs.append((self.model(x) - y).pow(2).mean().item())
        self.model.train()
        return sum(errs) / len(errs)

    def fit(self):
        for step in range(self.cfg.steps):
            loss, norm = self.train_step()
            if step % self.cfg.log_every == 0:
                print(f"step {step:4d} | loss {loss:.5f} | grad norm {norm:.3f}")
        print("eval mse", self.evaluate())


if __name__ == "__main__":
    cfg = Config()
    torch.manual_seed(cfg.seed)
    Runner(cfg).fit()
