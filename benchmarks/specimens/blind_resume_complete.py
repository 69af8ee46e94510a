import math
import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-resume-complete",
    "title": "a language model stopped half way and resumed in a new trainer with model, optimizer, schedule, step and data position restored",
    "family": "lstm",
    "needs": "cpu",
    "trap": "a save and a load in the middle, a new optimizer object and new parameter objects after it",
}

CHARS = "abcdefghijkl ."


def build_text(n, seed):
    r = random.Random(seed)
    words = ["".join(random.Random(k).choices(CHARS[:12], k=3 + k % 4)) for k in range(30)]
    out = []
    while sum(len(w) + 1 for w in out) < n:
        out.append(words[min(29, int(r.expovariate(0.12)))])
        if r.random() < 0.1:
            out[-1] += "."
    return torch.tensor([CHARS.index(c) for c in " ".join(out)[:n]])


class Stream:
    def __init__(self, tokens, batch, seq, seed):
        self.tokens, self.batch, self.seq = tokens, batch, seq
        self.gen = torch.Generator().manual_seed(seed)

    def next(self):
        at = torch.randint(0, len(self.tokens) - self.seq - 1, (self.batch,), generator=self.gen)
        rows = torch.stack([self.tokens[a : a + self.seq + 1] for a in at.tolist()])
        return rows[:, :-1], rows[:, 1:]


class CharLSTM(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(len(CHARS), 24)
        self.lstm = nn.LSTM(24, dim, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(dim, len(CHARS))

    def forward(self, x):
        return self.out(self.drop(self.lstm(self.emb(x))[0]))


class Trainer:
    total, warmup = 360, 20

    def __init__(self, train, val, seed):
        torch.manual_seed(seed)
        self.model = CharLSTM()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=5e-3, weight_decay=0.01)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, self.factor)
        self.stream, self.val, self.step = Stream(train, 32, 40, 9), val, 0

    @classmethod
    def factor(cls, s):
        return min(1, (s + 1) / cls.warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * s / cls.total)))

    def save(self, path):
        torch.save(
            {
                "model": self.model.state_dict(),
                "opt": self.opt.state_dict(),
                "sched": self.sched.state_dict(),
                "step": self.step,
                "gen": self.stream.gen.get_state(),
                "rng": torch.get_rng_state(),
            },
            path,
        )

    def load(self, path):
        c = torch.load(path)
        self.model.load_state_dict(c["model"])
        self.opt.load_state_dict(c["opt"])
        self.sched.load_state_dict(c["sched"])
        self.step = c["step"]
        self.stream.gen.set_state(c["gen"])
        torch.set_rng_state(c["rng"])

    def run(self, until):
        self.model.train()
        while self.step < until:
            x, y = self.stream.next()
            loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            self.step += 1
            if self.step % 30 == 0:
                print(f"step {self.step} loss {loss.item():.4f} val {self.evaluate():.4f}")

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        rows = self.val[: 2050 // 41 * 41].view(-1, 41)
        loss = F.cross_entropy(self.model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).item()
        self.model.train()
        return loss


if __name__ == "__main__":
    torch.set_num_threads(1)
    train, val = build_text(60000, 1), build_text(4000, 2)
    a = Trainer(train, val, seed=0)
    a.run(180)
    a.save("half.pt")
    del a
    b = Trainer(train, val, seed=123)
    b.load("half.pt")
    b.run(Trainer.total)
    os.remove("half.pt")
