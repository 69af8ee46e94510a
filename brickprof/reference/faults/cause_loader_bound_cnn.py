"""The dataset opens and parses its file anew for every sample, about four milliseconds each, in the main process. The
step takes a millisecond and waits sixty for its batch."""

import json
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "cause-loader-bound-cnn",
    "row": None,
    "title": "the loader is far slower than the step",
    "family": "cnn",
    "kind": "performance",
    "contracts": ["C-BUDGET-001", "C-RESOURCE-001"],
    "root_causes": ["loader-bound"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Annotations(Dataset):
    def __init__(self, path):
        self.path = path
        self.count = len(json.loads(path.read_text()))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        record = json.loads(self.path.read_text())[index]
        time.sleep(0.002)
        return torch.tensor(record["pixels"]).view(1, 8, 8), record["label"]


def write_annotations(folder, count=160):
    records = []
    for _ in range(count):
        label = int(torch.randint(0, 2, ()))
        pixels = torch.randn(8, 8)
        pixels[2:6, 2:6] += 1.5 * label
        records.append({"label": label, "pixels": [round(v, 3) for v in pixels.flatten().tolist()]})
    path = Path(folder, "annotations.json")
    path.write_text(json.dumps(records))
    return path


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(Annotations(write_annotations(folder)), batch_size=16, shuffle=True)
        model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for epoch in range(3):
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
