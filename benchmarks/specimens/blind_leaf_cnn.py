import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-leaf-cnn",
    "row": None,
    "title": "a large unregularised CNN trained for 60 epochs on 120 noisy images: validation loss climbs while training loss goes to zero",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["overfitting"],
    "bricks": [],
    "first_step": 60,
    "needs": "cpu",
    "crashes": False,
}


def leaves(n, seed):
    g = torch.Generator().manual_seed(seed)
    protos = torch.randn(5, 1, 12, 12, generator=torch.Generator().manual_seed(8))
    y = torch.randint(5, (n,), generator=g)
    x = 0.35 * protos[y] + torch.randn(n, 1, 12, 12, generator=g)
    flip = torch.rand(n, generator=g) < 0.15
    y = torch.where(flip, torch.randint(5, (n,), generator=g), y)
    return TensorDataset(x, y)


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(64 * 9, 256)
        self.fc2 = nn.Linear(256, 5)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


@torch.no_grad()
def validate(model, loader, crit):
    model.eval()
    loss = acc = n = 0
    for x, y in loader:
        out = model(x)
        loss += crit(out, y).item() * len(y)
        acc += (out.argmax(1) == y).sum().item()
        n += len(y)
    return loss / n, acc / n


if __name__ == "__main__":
    torch.manual_seed(0)
    train_loader = DataLoader(leaves(120, 0), batch_size=20, shuffle=True)
    val_loader = DataLoader(leaves(400, 1), batch_size=200)
    model = LeafNet()
    crit = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(60):
        model.train()
        total = 0.0
        for x, y in train_loader:
            opt.zero_grad()
            loss = crit(model(x), y)
            loss.backward()
            opt.step()
            total += loss.item()
        vl, va = validate(model, val_loader, crit)
        if epoch % 5 == 4 or epoch == 0:
            print(f"epoch {epoch + 1}: train_loss={total / len(train_loader):.4f} val_loss={vl:.4f} val_acc={va:.3f}")
