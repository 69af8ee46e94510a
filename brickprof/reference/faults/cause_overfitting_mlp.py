"""A wide network, sixty noisy training rows, two hundred epochs and no regularisation. The training loss goes to zero
while the validation loss turns around and climbs to several times its best value."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-overfitting-mlp",
    "row": None,
    "title": "sixty rows learnt by heart",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-GENERAL-001", "C-AUTOEVAL-001"],
    "root_causes": ["overfitting"],
    "bricks": [],
    "first_step": 100,
    "needs": "cpu",
}


def sample(count):
    x = torch.randn(count, 20)
    y = (x[:, 0] + x[:, 1] + 1.0 * torch.randn(count) > 0).long()
    return x, y


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(x), y)
    model.train()
    return loss.item()


def main(rows=60, epochs=200):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (x, y), validation = sample(rows), sample(500)
    model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for batch in torch.randperm(rows).split(20):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} validation {evaluate(model, *validation):.4f}")


if __name__ == "__main__":
    main()
