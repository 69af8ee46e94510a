import random
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence, pack_padded_sequence
from torch.utils.data import Dataset, DataLoader

TRUTH = {
    "id": "blind-varlen-batches",
    "row": None,
    "title": "the collate function sorts the sequences by length but leaves the labels in their old order",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["labels-misaligned"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Events(Dataset):
    """Event sequences; each class favours its own group of event codes."""

    def __init__(self, n, classes=6, seed=0):
        rng = random.Random(seed)
        self.items = []
        for _ in range(n):
            c = rng.randrange(classes)
            length = rng.randint(6, 24)
            seq = [1 + c * 5 + rng.randrange(5) if rng.random() < 0.5 else 1 + rng.randrange(classes * 5) for _ in range(length)]
            self.items.append((torch.tensor(seq), c))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    seqs, labels = zip(*batch)
    labels = torch.tensor(labels)
    seqs = sorted(seqs, key=len, reverse=True)
    lengths = torch.tensor([len(s) for s in seqs])
    return pad_sequence(seqs, batch_first=True), lengths, labels


class Classifier(nn.Module):
    def __init__(self, vocab=31, dim=32, hidden=48, classes=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, classes)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True)
        _, (h, _) = self.rnn(packed)
        return self.fc(torch.cat([h[0], h[1]], dim=1))


torch.manual_seed(3)
train_dl = DataLoader(Events(1920, seed=1), batch_size=32, shuffle=True, collate_fn=collate, drop_last=True)
test_dl = DataLoader(Events(320, seed=2), batch_size=64, collate_fn=collate)
net = Classifier()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(3):
    net.train()
    run = 0.0
    for x, lengths, y in train_dl:
        optimizer.zero_grad()
        loss = loss_fn(net(x, lengths), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        run += loss.item()
    net.eval()
    with torch.no_grad():
        hit = sum((net(x, l).argmax(1) == y).sum().item() for x, l, y in test_dl)
    print(f"epoch {epoch}: train {run / len(train_dl):.4f}  test acc {hit / 320:.3f}")
