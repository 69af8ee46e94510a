"""An LSTM reads a periodic text in windows; the state is carried on and cut off from the graph between them."""

import torch
from torch import nn

TRUTH = {
    "id": "lstm-truncated",
    "title": "truncated backpropagation with a carried state",
    "family": "lstm",
    "trap": "detach() between windows is meant; data is read in order and not shuffled, as text is",
    "needs": "cpu",
}

TEXT = "the cat sat on the mat and the dog lay by the log while the hen ran to the pen . " * 40


class CharModel(nn.Module):
    def __init__(self, letters, width=64):
        super().__init__()
        self.embed = nn.Embedding(letters, 16)
        self.lstm = nn.LSTM(16, width, batch_first=True)
        self.out = nn.Linear(width, letters)

    def forward(self, ids, state):
        x, state = self.lstm(self.embed(ids), state)
        return self.out(x), state


def train():
    torch.manual_seed(1)
    letters = sorted(set(TEXT))
    ids = torch.tensor([letters.index(c) for c in TEXT])
    rows, window = 8, 20
    ids = ids[: len(ids) // rows * rows].view(rows, -1)
    model = CharModel(len(letters))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(6):
        state = None
        for at in range(0, ids.shape[1] - 1 - window, window):
            x, y = ids[:, at : at + window], ids[:, at + 1 : at + window + 1]
            logits, state = model(x, state)
            state = tuple(part.detach() for part in state)
            loss = criterion(logits.transpose(1, 2), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    train()
