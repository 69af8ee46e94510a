"""A hand-made C reader for records is given a null pointer when the buffer has run empty. The process dies with a
segmentation fault in the middle of training, without a Python traceback."""

import ctypes

import torch
from torch import nn

TRUTH = {
    "id": "cause-crashed-by-signal-lstm",
    "row": None,
    "title": "a segmentation fault in the reader",
    "family": "lstm",
    "kind": "process",
    "contracts": ["C-PROCESS-001"],
    "root_causes": ["crashed-by-signal"],
    "bricks": [],
    "first_step": 80,
    "needs": "cpu",
}


class RecordReader:
    """Hands out fixed-size records from a C buffer by pointer."""

    def __init__(self, records, length):
        values = torch.randn(records * length).tolist()
        self.buffer = (ctypes.c_float * len(values))(*values)
        self.records, self.length, self.place = records, length, 0

    def next(self):
        start = ctypes.addressof(self.buffer) + 4 * self.place * self.length if self.place < self.records else 0
        self.place += 1
        record = torch.empty(self.length)
        ctypes.memmove(record.data_ptr(), start, 4 * self.length)
        return record


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    reader = RecordReader(records=80 * 8, length=12)
    lstm, out = nn.LSTM(1, 16, batch_first=True), nn.Linear(16, 1)
    optimizer = torch.optim.Adam([*lstm.parameters(), *out.parameters()], lr=5e-3)
    for step in range(120):
        x = torch.stack([reader.next() for _ in range(8)]).unsqueeze(-1)
        prediction = out(lstm(x)[0])
        loss = nn.functional.mse_loss(prediction, x.cumsum(1) / 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
