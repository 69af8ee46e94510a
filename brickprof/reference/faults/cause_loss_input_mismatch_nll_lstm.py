"""NLLLoss expects log-probabilities and gets raw logits. The loss has no lower bound: it goes ever further below zero
while the outputs grow and accuracy does not follow."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-loss-input-mismatch-nll-lstm",
    "row": None,
    "title": "raw logits in NLLLoss",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-LOSSFN-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["loss-input-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Parity(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.embed = nn.Embedding(8, 8)
        self.lstm = nn.LSTM(8, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 4)

    def forward(self, ids):
        _, (state, _) = self.lstm(self.embed(ids))
        return self.fc(state.squeeze(0))


def train(model, loader, epochs):
    criterion = nn.NLLLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(epochs):
        right = seen = 0
        for ids, labels in loader:
            optimizer.zero_grad()
            scores = model(ids)
            loss = criterion(scores, labels)
            loss.backward()
            optimizer.step()
            right += int((scores.argmax(1) == labels).sum())
            seen += len(labels)
        print(f"epoch {epoch} loss {loss.item():.3f} accuracy {right / seen:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ids = torch.randint(0, 8, (768, 8))
    labels = ids[:, -1] // 2
    train(Parity(), DataLoader(TensorDataset(ids, labels), batch_size=32, shuffle=True), epochs=7)
