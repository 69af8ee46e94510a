"""Sequences of different lengths, padded and packed; the loss is averaged over the true places only."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

TRUTH = {
    "id": "padded-sequences",
    "title": "packed sequences and a masked mean",
    "family": "lstm",
    "trap": "a loss with reduction none, times a mask, whose padded places hold meaningless values",
    "needs": "cpu",
}


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 8, padding_idx=0)
        self.rnn = nn.LSTM(8, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, 2)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        return self.out(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])


def sample():
    length = int(torch.randint(3, 12, ()))
    ids = torch.randint(1, 4, (length,))
    return ids, (ids == 1).cumsum(0) % 2


def collate(rows):
    ids, targets = zip(*rows, strict=True)
    lengths = torch.tensor([len(row) for row in ids])
    return pad_sequence(ids, batch_first=True), pad_sequence(targets, batch_first=True), lengths


def main():
    torch.manual_seed(0)
    loader = DataLoader([sample() for _ in range(640)], batch_size=32, shuffle=True, collate_fn=collate)
    model = Counter()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-2)
    for epoch in range(9):
        for ids, targets, lengths in loader:
            logits = model(ids, lengths)
            mask = torch.arange(ids.shape[1])[None] < lengths[:, None]
            losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
            loss = (losses * mask).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
