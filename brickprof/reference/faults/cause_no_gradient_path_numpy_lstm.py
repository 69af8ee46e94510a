"""Features of an LSTM are smoothed with numpy between encoder and head. The round trip through .detach().numpy() cuts
the graph: embedding and LSTM never get a gradient."""

import numpy as np
import torch
from torch import nn

TRUTH = {
    "id": "cause-no-gradient-path-numpy-lstm",
    "row": None,
    "title": "a numpy round trip in the forward pass",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001"],
    "root_causes": ["no-gradient-path"],
    "bricks": ["lstm", "embedding"],
    "first_step": 0,
    "needs": "cpu",
}


class SmoothedTagger(nn.Module):
    def __init__(self, words=30, hidden=24):
        super().__init__()
        self.embedding = nn.Embedding(words, 12)
        self.lstm = nn.LSTM(12, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 2)

    def smooth(self, states):
        values = states.detach().numpy()
        kernel = np.array([0.25, 0.5, 0.25], dtype=np.float32)
        padded = np.pad(values, ((0, 0), (1, 1), (0, 0)), mode="edge")
        smoothed = sum(w * padded[:, i : i + values.shape[1]] for i, w in enumerate(kernel))
        return torch.from_numpy(smoothed)

    def forward(self, ids):
        states, _ = self.lstm(self.embedding(ids))
        return self.head(self.smooth(states)[:, -1])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SmoothedTagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(150):
        ids = torch.randint(0, 30, (32, 10))
        labels = (ids[:, :5].sum(1) > ids[:, 5:].sum(1)).long()
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(step, round(loss.item(), 4))


if __name__ == "__main__":
    main()
