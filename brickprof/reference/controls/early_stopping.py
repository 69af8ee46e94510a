"""Training stops when the held-out loss has not improved for three epochs, and goes back to the best weights."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

TRUTH = {
    "id": "early-stopping",
    "title": "early stopping with the best weights restored",
    "family": "mlp",
    "trap": "the run ends before its planned number of epochs; weights are replaced at the end",
    "needs": "cpu",
}


class Stopper:
    def __init__(self, patience=3):
        self.patience, self.best, self.state, self.waited = patience, float("inf"), None, 0

    def done(self, loss, model):
        if loss < self.best - 1e-3:
            self.best, self.waited = loss, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.waited += 1
        return self.waited >= self.patience


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total = sum(F.cross_entropy(model(x), y, reduction="sum").item() for x, y in loader)
    model.train()
    return total / len(loader.dataset)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(2)
    x = torch.randn(1500, 8)
    y = (x[:, 0] + x[:, 1] * 0.8 + 0.5 * torch.randn(1500) > 0).long() + (x[:, 2] > 0.7).long()
    train, held_out = random_split(TensorDataset(x, y), [1100, 400])
    loader, tests = DataLoader(train, 44, shuffle=True), DataLoader(held_out, 200)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    stopper = Stopper()
    for epoch in range(40):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
        score = evaluate(model, tests)
        print(f"epoch {epoch} held out {score:.4f}")
        if stopper.done(score, model):
            print(f"stopped at epoch {epoch}, best {stopper.best:.4f}")
            break
    model.load_state_dict(stopper.state)
