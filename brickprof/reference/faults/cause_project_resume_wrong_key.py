"""A trainer with checkpoints that hold everything, and a resume that looks for the optimizer under another key.
"optim" is not in the file, the branch is skipped without a word, and Adam and its schedule start over in the middle
of the run."""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-project-resume-wrong-key",
    "row": None,
    "title": "the optimizer's state is looked up under a wrong key",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-RESUME-001", "C-GPUOPT-001"],
    "root_causes": ["resume-state-lost"],
    "bricks": [],
    "first_step": 80,
    "needs": "cpu",
}


class Mixer(nn.Module):
    """Token mixing by a learnt causal matrix, channel mixing by an MLP."""

    def __init__(self, length, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mix = nn.Parameter(torch.eye(length) * 0.5)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + torch.tril(self.mix) @ self.norm1(x)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, vocab=20, length=12, dim=32, depth=3):
        super().__init__()
        self.vocab, self.length = vocab, length
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.Sequential(*[Mixer(length, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)))


class Trainer:
    def __init__(self, options):
        self.options = options
        self.path = Path(options.out, "last.pt")
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr, betas=(0.9, 0.98))
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, options.total)
        self.step = 0

    def save(self):
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "step": self.step,
            },
            self.path,
        )

    def resume(self):
        state = torch.load(self.path)
        self.model.load_state_dict(state["model"])
        if "optim" in state:
            self.optimizer.load_state_dict(state["optim"])
        if "sched" in state:
            self.scheduler.load_state_dict(state["sched"])
        self.step = state["step"]
        print(f"resumed at step {self.step}")

    def batch(self):
        start = torch.randint(0, 20, (self.options.batch, 1))
        stride = torch.randint(1, 6, (self.options.batch, 1))
        rows = (start + stride * torch.arange(13)) % 20
        return rows[:, :-1], rows[:, 1:]

    def fit(self, until):
        while self.step < until:
            x, y = self.batch()
            loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            if self.step % 10 == 0:
                print(f"step {self.step} loss {loss.item():.4f} lr {self.scheduler.get_last_lr()[0]:.2e}")
            self.step += 1
            if self.step % self.options.every == 0:
                self.save()


def main(options):
    torch.manual_seed(0)
    Trainer(options).fit(80)
    second = Trainer(options)
    if Path(options.out, "last.pt").exists():
        second.resume()
    second.fit(options.total)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--total", type=int, default=140)
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--out", default=".")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args(["--out", folder]))
