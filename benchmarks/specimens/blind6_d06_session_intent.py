import random
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind6-d06-session-intent",
    "row": None,
    "title": "collate sorts the sequences by length for packing but leaves the labels in the old order",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["labels-misaligned"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

N_EVENTS, N_INTENTS = 40, 5


class Sessions(Dataset):
    """Click sessions; every intent prefers its own events."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            intent = rng.randrange(N_INTENTS)
            ln = rng.randint(6, 24)
            ev = [1 + (intent * 8 + rng.randrange(8) if rng.random() < 0.35 else rng.randrange(N_EVENTS))
                  for _ in range(ln)]
            self.rows.append((torch.tensor(ev), intent))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    seqs = [r[0] for r in rows]
    target = torch.tensor([r[1] for r in rows])
    seqs = sorted(seqs, key=len, reverse=True)
    lengths = torch.tensor([len(s) for s in seqs])
    return pad_sequence(seqs, batch_first=True), lengths, target


class IntentModel(nn.Module):
    def __init__(self, dim=32, hid=48):
        super().__init__()
        self.emb = nn.Embedding(N_EVENTS + 1, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, hid, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(hid, N_INTENTS)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.emb(x), lengths, batch_first=True)
        _, (h, _) = self.lstm(packed)
        return self.fc(self.drop(h[-1]))


class Trainer:
    def __init__(self, model, train, valid, epochs):
        self.model, self.epochs = model, epochs
        self.train_dl = DataLoader(train, 32, shuffle=True, collate_fn=collate, drop_last=True)
        self.valid_dl = DataLoader(valid, 64, collate_fn=collate)
        self.opt = torch.optim.Adam(model.parameters(), lr=3e-3)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(
            self.opt, 3e-3, total_steps=epochs * len(self.train_dl), pct_start=0.1)
        self.crit = nn.CrossEntropyLoss()

    def fit(self):
        for ep in range(self.epochs):
            self.model.train()
            tot = 0.0
            for x, ln, y in self.train_dl:
                self.opt.zero_grad()
                loss = self.crit(self.model(x, ln), y)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.sched.step()
                tot += loss.item()
            print(f"epoch {ep}: train {tot / len(self.train_dl):.3f} valid acc {self.score():.3f}")

    @torch.no_grad()
    def score(self):
        self.model.eval()
        hits = sum((self.model(x, ln).argmax(1) == y).sum().item() for x, ln, y in self.valid_dl)
        return hits / len(self.valid_dl.dataset)


if __name__ == "__main__":
    torch.manual_seed(21)
    Trainer(IntentModel(), Sessions(2400, 1), Sessions(500, 2), epochs=4).fit()
