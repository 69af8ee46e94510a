"""Batches are prepared in a thread and handed over by a queue. The thread stops after forty batches because of an
error that it swallows; the training waits at queue.get() for a batch that never comes."""

import queue
import threading

import torch
from torch import nn

TRUTH = {
    "id": "cause-hung-queue-cnn",
    "row": None,
    "title": "waiting for a thread that has ended",
    "family": "cnn",
    "kind": "process",
    "contracts": ["C-PROCESS-001"],
    "root_causes": ["hung"],
    "bricks": [],
    "first_step": 40,
    "needs": "cpu",
    "run": ["--hang", "3"],
}


def produce(batches, limit):
    try:
        for number in range(100):
            labels = torch.randint(0, 2, (16,))
            images = torch.randn(16, 1, 8, 8)
            images[labels == 1, :, 2:6, 2:6] += 1
            if number >= limit:
                raise OSError("the share is not mounted")
            batches.put((images, labels))
    except OSError:
        return


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batches = queue.Queue(maxsize=4)
    threading.Thread(target=produce, args=(batches, 40), daemon=True).start()
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(100):
        images, labels = batches.get(timeout=12)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
