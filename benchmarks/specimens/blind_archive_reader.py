"""Click-through model reading records from compressed archive blocks."""
import json
import random
import time
import zlib
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-archive-reader",
    "row": None,
    "title": "every __getitem__ unpacks and parses a whole archive block to return one record: the steps wait for the loader",
    "family": "mlp",
    "kind": "performance",
    "contracts": [],
    "root_causes": ["loader-bound"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

USERS, ITEMS, BLOCK = 120, 200, 120


def write_archive(n, seed):
    rng = random.Random(seed)
    taste = random.Random(5)
    u = [taste.gauss(0, 1) for _ in range(USERS)]
    v = [taste.gauss(0, 1) for _ in range(ITEMS)]
    blocks, cur = [], []
    for _ in range(n):
        a, b = rng.randrange(USERS), rng.randrange(ITEMS)
        s = u[a] + v[b]
        cur.append({"user": a, "item": b, "hour": rng.randrange(24), "click": int(s + rng.gauss(0, 0.3) > 0)})
        if len(cur) == BLOCK:
            blocks.append(zlib.compress(json.dumps(cur).encode(), 9))
            cur = []
    return blocks


class Archive(Dataset):
    def __init__(self, blocks):
        self.blocks = blocks

    def _records(self, b):
        return json.loads(zlib.decompress(self.blocks[b]))

    def __len__(self):
        return len(self.blocks) * BLOCK

    def __getitem__(self, i):
        r = self._records(i // BLOCK)[i % BLOCK]
        return r["user"], r["item"], r["hour"] / 23.0, float(r["click"])


class ClickNet(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, d), nn.Embedding(ITEMS, d)
        self.mlp = nn.Sequential(nn.Linear(3 * d + 1, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i, h):
        a, b = self.user(u), self.item(i)
        return self.mlp(torch.cat([a, b, a * b, h.float().unsqueeze(1)], 1)).squeeze(1)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Archive(write_archive(9600, 1)), batch_size=64, shuffle=True)
    model = ClickNet()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    crit = nn.BCEWithLogitsLoss()
    for epoch in range(1):
        tick, total, n = time.perf_counter(), 0.0, 0
        for u, i, h, y in loader:
            opt.zero_grad()
            loss = crit(model(u, i, h), y.float())
            loss.backward()
            opt.step()
            total, n = total + loss.item(), n + 1
            if n % 25 == 0:
                dt = time.perf_counter() - tick
                print(f"epoch {epoch} batch {n} loss {total / n:.4f} {25 * 64 / dt:.0f} records/s")
                tick = time.perf_counter()


if __name__ == "__main__":
    main()
