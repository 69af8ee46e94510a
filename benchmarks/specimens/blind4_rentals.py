import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind4-rentals",
    "title": "One listing has zero rooms, so a feature computed in the dataset is infinite and the batch that holds this row is not finite.",
    "family": "mlp",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["data-nonfinite"],
    "bricks": [],
    "first_step": 69,
    "needs": "cpu",
    "crashes": False,
}

torch.set_num_threads(1)
torch.manual_seed(3)
rng = np.random.default_rng(77)


class Listings(Dataset):
    """Raw table of flats; features are derived on the fly."""

    def __init__(self, n):
        self.area = rng.gamma(6.0, 12.0, n).astype(np.float32) + 15
        self.rooms = np.clip(np.round(self.area / 28 + rng.normal(0, 0.4, n)), 1, 9).astype(np.float32)
        self.age = rng.uniform(0, 90, n).astype(np.float32)
        self.dist = rng.exponential(4.0, n).astype(np.float32)
        self.zone = rng.integers(0, 12, n)
        self.rooms[int(n * 0.61)] = 0  # studio
        zone_effect = np.linspace(-0.5, 0.5, 12)[self.zone]
        rent = 3.0 + 0.8 * np.log(self.area) + zone_effect - 0.06 * self.dist - 0.003 * self.age
        rent += 0.08 * np.maximum(self.rooms, 1) + rng.normal(0, 0.05, n)
        self.y = ((rent - 6.0) / 0.6).astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        feats = np.array([
            (math.log(self.area[i]) - 4.3) / 0.4,
            (self.area[i] / self.rooms[i] - 30.0) / 8.0,
            (self.rooms[i] - 3.0) / 1.2,
            (self.age[i] - 45.0) / 26.0,
            (self.dist[i] - 4.0) / 4.0,
        ], dtype=np.float32)
        return torch.from_numpy(feats), int(self.zone[i]), self.y[i]


class RentNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.zone = nn.Embedding(12, 8)
        self.trunk = nn.Sequential(
            nn.Linear(13, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(),
        )
        self.mu = nn.Linear(width, 1)

    def forward(self, f, z):
        return self.mu(self.trunk(torch.cat([f, self.zone(z)], -1))).squeeze(-1)


np.seterr(all="ignore")
full = Listings(9000)
held = Listings(512)
held.rooms[:] = np.maximum(held.rooms, 1)
loader = DataLoader(full, batch_size=32, shuffle=True, drop_last=True)
val = [b for b in DataLoader(held, batch_size=256)]

model = RentNet()
optim = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
sched = torch.optim.lr_scheduler.OneCycleLR(optim, max_lr=2e-3, total_steps=len(loader))
huber = nn.HuberLoss(delta=1.0)

for it, (f, z, y) in enumerate(loader):
    pred = model(f, z)
    loss = huber(pred, y)
    optim.zero_grad()
    loss.backward()
    optim.step()
    sched.step()
    if it % 20 == 0:
        with torch.no_grad():
            v = sum(huber(model(a, b), c).item() for a, b, c in val) / len(val)
        print(f"it {it} train {loss.item():.4f} val {v:.4f} lr {sched.get_last_lr()[0]:.2e}")
print("done")
