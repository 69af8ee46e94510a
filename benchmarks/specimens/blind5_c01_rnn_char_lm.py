"""Character language model on generated log lines, plain Elman RNN."""
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-c01-rnn-char-lm",
    "row": None,
    "title": "ReLU recurrence with a gain above one over 96 time steps and no clipping: the gradient explodes through time, then NaN",
    "family": "lstm",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["exploding-gradients", "grad-clip-not-applied"],
    "bricks": ["rnn"],
    "first_step": 11,
    "needs": "cpu",
    "crashes": False,
}

SEED, SEQ, BATCH, HIDDEN, STEPS = 11, 96, 16, 128, 100
random.seed(SEED)
torch.manual_seed(SEED)

SERVICES = ["auth", "billing", "search", "mailer", "cart"]
VERBS = ["started", "stopped", "failed", "retried", "scaled"]


def log_line():
    svc = random.choice(SERVICES)
    return f"[{random.randint(10, 23)}:{random.randint(10, 59)}] {svc} {random.choice(VERBS)} on {svc}-node{random.randint(0, 9)}\n"


text = "".join(log_line() for _ in range(4000))
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in text])
cut = int(0.9 * len(ids))
train_ids, val_ids = ids[:cut], ids[cut:]


def get_batch(src):
    at = torch.randint(0, len(src) - SEQ - 1, (BATCH,))
    x = torch.stack([src[a:a + SEQ] for a in at])
    y = torch.stack([src[a + 1:a + SEQ + 1] for a in at])
    return x, y


class CharRNN(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.emb = nn.Embedding(vocab, 32)
        self.rnn = nn.RNN(32, hidden, nonlinearity="relu", batch_first=True)
        self.out = nn.Linear(hidden, vocab)
        for name, p in self.rnn.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(p, gain=1.1)
            else:
                nn.init.zeros_(p)
        nn.init.normal_(self.emb.weight, std=0.1)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


model = CharRNN(len(chars), HIDDEN)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@torch.no_grad()
def validate():
    model.eval()
    tot = 0.0
    for _ in range(4):
        x, y = get_batch(val_ids)
        tot += F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
    model.train()
    return tot / 4


for step in range(STEPS):
    x, y = get_batch(train_ids)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:4d}  train {loss.item():.3f}  bits/char {loss.item() / math.log(2):.2f}  val {validate():.3f}")
