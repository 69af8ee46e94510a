"""An LSTM labels sequences; RMSprop runs with lr 0.5, copied from an SGD script. The loss jumps up at once and swings
without ever settling."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "cause-learning-rate-too-high-rmsprop-lstm",
    "row": None,
    "title": "RMSprop with an SGD learning rate",
    "family": "lstm",
    "kind": "numeric",
    "contracts": ["C-STEPSIZE-001", "C-TRAINSTABLE-001", "FALSIFY-ALBOR-001", "C-LOSSSPIKE-001"],
    "root_causes": ["learning-rate-too-high"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Waves(Dataset):
    """Noisy sines of three frequencies."""

    def __init__(self, count):
        self.labels = torch.randint(0, 3, (count,))
        t = torch.linspace(0, 6, 20)
        phase = torch.rand(count, 1) * 6
        self.series = torch.sin(t * (1.0 + self.labels[:, None]) + phase) + 0.1 * torch.randn(count, 20)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.series[i].unsqueeze(-1), self.labels[i]


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 32, batch_first=True)
        self.fc = nn.Linear(32, 3)

    def forward(self, x):
        _, (h, _) = self.lstm(x)
        return self.fc(h[-1])


def run_epoch(model, loader, optimizer):
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(8)
    loader = DataLoader(Waves(480), batch_size=32, shuffle=True)
    model = Tagger()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.5)
    for epoch in range(10):
        losses = run_epoch(model, loader, optimizer)
        print(f"epoch {epoch} first {losses[0]:.3f} mean {sum(losses) / len(losses):.3f} worst {max(losses):.3f}")
