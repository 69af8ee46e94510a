"""Same/different verification with a shared encoder."""

import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-pair-verifier",
    "row": None,
    "title": "the partner is drawn twice in __getitem__, once for the sample and again for the label, so labels are coin flips",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["labels-random"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class FacePairs(Dataset):
    def __init__(self, n, n_ids=12, dim=32, seed=0):
        proto = torch.randn(n_ids, dim, generator=torch.Generator().manual_seed(77))
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, n_ids, (n,), generator=g)
        self.feats = proto[self.ids] + 0.4 * torch.randn(n, dim, generator=g)
        self.by_id = {k: (self.ids == k).nonzero().flatten().tolist() for k in range(n_ids)}

    def partner(self, i):
        me = int(self.ids[i])
        if random.random() < 0.5:
            return random.choice(self.by_id[me])
        other = random.choice([k for k in self.by_id if k != me])
        return random.choice(self.by_id[other])

    def label(self, i, j):
        return float(self.ids[i] == self.ids[j])

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        a, b = self.feats[i], self.feats[self.partner(i)]
        return a, b, torch.tensor(self.label(i, self.partner(i)))


class Encoder(nn.Module):
    def __init__(self, dim, out=24):
        super().__init__()
        self.fc1 = nn.Linear(dim, 96)
        self.norm = nn.LayerNorm(96)
        self.fc2 = nn.Linear(96, out)

    def forward(self, x):
        return self.fc2(torch.relu(self.norm(self.fc1(x))))


class Verifier(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.encoder = Encoder(dim)
        self.score = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, a, b):
        za, zb = self.encoder(a), self.encoder(b)
        return self.score((za - zb).abs()).squeeze(-1)


@torch.no_grad()
def test(model, loader, crit):
    model.eval()
    loss = hits = n = 0
    for a, b, y in loader:
        z = model(a, b)
        loss += crit(z, y).item() * len(y)
        hits += ((z > 0).float() == y).sum().item()
        n += len(y)
    model.train()
    return loss / n, hits / n


if __name__ == "__main__":
    random.seed(5)
    torch.manual_seed(5)
    train_loader = DataLoader(FacePairs(8000, seed=1), batch_size=64, shuffle=True)
    test_loader = DataLoader(FacePairs(1000, seed=2), batch_size=200)
    model = Verifier()
    crit = nn.BCEWithLogitsLoss()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    it = 0
    for epoch in range(3):
        for a, b, y in train_loader:
            loss = crit(model(a, b), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            it += 1
            if it % 40 == 0:
                print(f"it {it} loss {loss.item():.4f}")
        l, acc = test(model, test_loader, crit)
        print(f"-- epoch {epoch} test loss {l:.4f} acc {acc:.3f}")
