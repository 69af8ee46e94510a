"""The next batch is normalised on a side stream, and the training reads it on the main stream without waiting. Some
steps train on a half-written batch, and no two runs give the same losses."""

import sys

import torch
from torch import nn

TRUTH = {
    "id": "cause-stream-race-mlp",
    "row": None,
    "title": "a batch is read while another stream writes it",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-STREAMSYNC-001", "C-DETERM-001"],
    "root_causes": ["stream-race", "missing-sync"],
    "bricks": [],
    "first_step": 1,
    "needs": "gpu",
    "run": ["--sync-check"],
}


class Prefetcher:
    """Prepares the next batch on a stream of its own, in one of two buffers that are used in turn."""

    def __init__(self, rows=4096, columns=2048):
        self.stream = torch.cuda.Stream()
        self.buffers = [torch.zeros(rows, columns, device="cuda") for _ in range(2)]
        self.mixing = torch.randn(columns, columns, device="cuda") / columns**0.5

    def start(self):
        with torch.cuda.stream(self.stream):
            raw = torch.randn_like(self.buffers[1])
            for _ in range(20):
                raw = torch.tanh(raw @ self.mixing)
            self.buffers[1].copy_((raw - raw.mean(0)) / (raw.std(0) + 1e-5))

    def batch(self):
        self.buffers.reverse()
        return self.buffers[0]


def main():
    if not torch.cuda.is_available():
        print("this script needs a GPU")
        sys.exit(0)

    torch.manual_seed(0)
    source = Prefetcher()
    model = nn.Sequential(nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    source.start()
    for step in range(200):
        x = source.batch()
        loss = nn.functional.mse_loss(model(x), x[:, :1] + x[:, 1:2])
        source.start()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
