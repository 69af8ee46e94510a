import os
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind-exact-resume", "title": "interrupted sequence training that restores model, optimizer, schedule, order and random state",
           "family": "lstm", "needs": "cpu", "trap": "a second set of objects appears in mid-run and is filled from a file; the job is split in the middle of an epoch"}

PATH = "exact_resume.pt"
SYM, L = 10, 12


def reverse_sum(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, SYM, (n, L), generator=g)
    y = (x + torch.roll(x, 1, 1)) % SYM
    y[:, 0] = x[:, 0]
    return x, y


class Order:
    """A stateful epoch order that can be stored."""

    def __init__(self, n, batch, seed):
        self.n, self.batch, self.g = n, batch, torch.Generator().manual_seed(seed)
        self.perm, self.at = torch.randperm(n, generator=self.g), 0

    def next(self):
        if self.at + self.batch > self.n:
            self.perm, self.at = torch.randperm(self.n, generator=self.g), 0
        out = self.perm[self.at:self.at + self.batch]
        self.at += self.batch
        return out

    def state_dict(self):
        return {"perm": self.perm, "at": self.at, "g": self.g.get_state()}

    def load_state_dict(self, s):
        self.perm, self.at = s["perm"], s["at"]
        self.g.set_state(s["g"])


class Job:
    def __init__(self, total):
        self.total, self.step = total, 0
        self.emb = nn.Embedding(SYM, 24)
        self.rnn = nn.LSTM(24, 64, batch_first=True)
        self.out = nn.Sequential(nn.Dropout(0.05), nn.Linear(64, SYM))
        self.net = nn.ModuleList([self.emb, self.rnn, self.out])
        self.opt = torch.optim.Adam(self.net.parameters(), lr=6e-3)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, total)
        self.order = Order(2400, 32, 5)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])

    def state(self):
        return {"net": self.net.state_dict(), "opt": self.opt.state_dict(), "sched": self.sched.state_dict(),
                "order": self.order.state_dict(), "step": self.step, "rng": torch.get_rng_state()}

    def restore(self, s):
        self.net.load_state_dict(s["net"])
        self.opt.load_state_dict(s["opt"])
        self.sched.load_state_dict(s["sched"])
        self.order.load_state_dict(s["order"])
        self.step = s["step"]
        torch.set_rng_state(s["rng"])

    def run(self, until, data, test):
        while self.step < until:
            i = self.order.next()
            loss = F.cross_entropy(self.forward(data[0][i]).flatten(0, 1), data[1][i].flatten())
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            self.step += 1
            if self.step % 40 == 0:
                self.net.eval()
                with torch.no_grad():
                    acc = (self.forward(test[0]).argmax(-1) == test[1]).float().mean().item()
                self.net.train()
                print(f"step {self.step} loss {loss.item():.3f} acc {acc:.3f}")


torch.manual_seed(0)
data, test = reverse_sum(2400, 1), reverse_sum(200, 2)
first = Job(400)
first.run(190, data, test)
torch.save(first.state(), PATH)
del first
print("restarting from file")
second = Job(400)
second.restore(torch.load(PATH))
second.run(400, data, test)
os.remove(PATH)
