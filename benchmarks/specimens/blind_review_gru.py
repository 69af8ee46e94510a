# Review polarity from token ids.
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-review-gru",
    "row": None,
    "title": "a wide bidirectional GRU is trained for 40 epochs on 96 noisy reviews without any regularisation: train loss to 0, val loss climbs",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["overfitting"],
    "bricks": [],
    "first_step": 18,
    "needs": "cpu",
    "crashes": False,
}

VOCAB, LENGTH = 400, 18


def reviews(n, seed):
    g = torch.Generator().manual_seed(seed)
    polarity = torch.randn(VOCAB, generator=torch.Generator().manual_seed(55))
    polarity = polarity * (polarity.abs() > 0.8)
    x = torch.randint(0, VOCAB, (n, LENGTH), generator=g)
    score = polarity[x].sum(1) + 1.2 * torch.randn(n, generator=g)
    return TensorDataset(x, (score > 0).float())


class ReviewGRU(nn.Module):
    def __init__(self, emb=96, hidden=96):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, emb)
        self.gru = nn.GRU(emb, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(2 * hidden, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        out, _ = self.gru(self.emb(x))
        return self.head(out.mean(1)).squeeze(-1)


def epoch_loss(model, loader, criterion, optimizer=None):
    model.train(optimizer is not None)
    total, correct, n = 0.0, 0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in loader:
            z = model(x)
            loss = criterion(z, y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(y)
            correct += ((z > 0).float() == y).sum().item()
            n += len(y)
    return total / n, correct / n


def main():
    torch.manual_seed(2)
    train = DataLoader(reviews(96, 1), batch_size=16, shuffle=True)
    valid = DataLoader(reviews(400, 2), batch_size=200)
    model = ReviewGRU()
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    history = []
    for epoch in range(40):
        tl, ta = epoch_loss(model, train, criterion, optimizer)
        vl, va = epoch_loss(model, valid, criterion)
        history.append((tl, vl))
        if epoch % 4 == 0 or epoch == 39:
            print(f"{epoch:3d} train {tl:.4f}/{ta:.3f} valid {vl:.4f}/{va:.3f}")
    print("best valid loss %.4f, last %.4f" % (min(v for _, v in history), history[-1][1]))


if __name__ == "__main__":
    main()
