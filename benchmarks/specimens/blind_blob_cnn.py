"""Small CNN that regresses blob centre and size from 20x20 images."""

import torch
import torch.nn as nn
import yaml
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-blob-cnn",
    "row": 14,
    "title": "gradient_accumulation_steps: 8 is configured but the loop reads another key (default 1), so it steps on every micro-batch of 2",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["config-unused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

CONFIG = yaml.safe_load("""
data:
  n_train: 4000
  micro_batch: 2
optim:
  lr: 0.01
  gradient_accumulation_steps: 8
  max_updates: 240
seed: 0
""")


class Blobs(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.c = torch.rand(n, 2, generator=g) * 2 - 1
        self.s = torch.rand(n, 1, generator=g) * 2 - 1
        ax = torch.linspace(-1.4, 1.4, 20)
        yy, xx = torch.meshgrid(ax, ax, indexing="ij")
        r2 = (xx - self.c[:, 0, None, None]) ** 2 + (yy - self.c[:, 1, None, None]) ** 2
        img = torch.exp(-r2 / (2 * (0.25 + 0.1 * self.s[:, :, None]) ** 2))
        self.x = ((img + 0.2 * torch.randn(img.shape, generator=g)) / 0.3).unsqueeze(1)
        self.y = torch.cat([self.c, self.s], 1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def build():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1),
        nn.GroupNorm(3, 12),
        nn.GELU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1),
        nn.GroupNorm(3, 24),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(24 * 25, 32),
        nn.GELU(),
        nn.Linear(32, 3),
    )


def forever(loader):
    while True:
        yield from loader


def main(cfg):
    torch.manual_seed(cfg["seed"])
    oc = cfg["optim"]
    loader = DataLoader(
        Blobs(cfg["data"]["n_train"], 0), batch_size=cfg["data"]["micro_batch"], shuffle=True, drop_last=True
    )
    val = Blobs(300, 1)
    accum = oc.get("accum_steps", 1)
    model = build()
    crit = nn.MSELoss()
    opt = torch.optim.Adam(model.parameters(), lr=oc["lr"])
    updates, window = 0, []
    model.train()
    for i, (x, y) in enumerate(forever(loader)):
        loss = crit(model(x), y)
        (loss / accum).backward()
        window.append(loss.item())
        if (i + 1) % accum == 0:
            opt.step()
            opt.zero_grad()
            updates += 1
            if updates % 40 == 0:
                model.eval()
                with torch.no_grad():
                    v = crit(model(val.x), val.y).item()
                model.train()
                print(f"update {updates} loss {sum(window) / len(window):.4f} val {v:.4f}")
                window = []
            if updates >= oc["max_updates"]:
                break


if __name__ == "__main__":
    main(CONFIG)
