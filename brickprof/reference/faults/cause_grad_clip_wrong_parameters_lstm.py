"""A character LSTM whose clip is given the parameters of the output layer only. The recurrent part, whose gradients
are the large ones, goes to the optimizer unclipped."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-grad-clip-wrong-parameters-lstm",
    "row": None,
    "title": "only the output layer is clipped",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-CLIP-001", "C-EMBED-GRAD-001"],
    "root_causes": ["grad-clip-wrong", "grad-clip-not-applied"],
    "bricks": ["lstm", "embed"],
    "first_step": 0,
    "needs": "cpu",
}

TEXT = "the quick brown fox jumps over the lazy dog and runs into the dark green forest again. " * 60
CHARS = sorted(set(TEXT))
IDS = torch.tensor([CHARS.index(c) for c in TEXT])


class CharLSTM(nn.Module):
    def __init__(self, vocab, hidden=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, 32)
        self.lstm = nn.LSTM(32, hidden, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(hidden, vocab)

    def forward(self, ids, state=None):
        out, state = self.lstm(self.embed(ids), state)
        return self.decoder(out), state


class Trainer:
    def __init__(self):
        self.model = CharLSTM(len(CHARS))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=30.0)
        self.criterion = nn.CrossEntropyLoss()

    def batch(self, size=16, length=20):
        starts = torch.randint(0, len(IDS) - length - 1, (size,)).tolist()
        rows = torch.stack([IDS[s : s + length + 1] for s in starts])
        return rows[:, :-1], rows[:, 1:]

    def step(self):
        x, y = self.batch()
        logits, _ = self.model(x)
        loss = self.criterion(logits.flatten(0, 1), y.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.decoder.parameters(), 0.25)
        self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(5)
    trainer = Trainer()
    for step in range(250):
        loss = trainer.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss:.3f}")
