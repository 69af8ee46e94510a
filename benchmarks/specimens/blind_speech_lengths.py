import argparse
import os
import socket
import time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence

TRUTH = {
    "id": "blind-speech-lengths",
    "row": None,
    "title": "the length-sorted utterances are split in the middle: one rank gets all long ones and the other waits for it in every step",
    "family": "lstm",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["straggler"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def corpus(n=960, dim=12, classes=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    means = torch.randn(classes, dim, generator=torch.Generator().manual_seed(99))
    out = []
    for i in range(n):
        c = i % classes
        r = torch.rand((), generator=g).item()
        frames = int(8 + 12 * r) if i % 2 else int(220 + 80 * r)
        out.append((0.5 * means[c] + torch.randn(frames, dim, generator=g), c))
    return out


def partition(items, rank, world):
    items = sorted(items, key=lambda it: len(it[0]))     # little padding within a batch
    share = len(items) // world
    return items[rank * share:(rank + 1) * share]


def batches(items, size, g):
    starts = torch.arange(0, len(items) - size + 1, size)
    for s in starts[torch.randperm(len(starts), generator=g)].tolist():
        chunk = items[s:s + size]
        x = pad_sequence([c[0] for c in chunk], batch_first=True)
        n = torch.tensor([len(c[0]) for c in chunk])
        yield x, n, torch.tensor([c[1] for c in chunk])


class Listener(nn.Module):
    def __init__(self, dim=12, hidden=80, classes=5):
        super().__init__()
        self.rnn = nn.LSTM(dim, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x, n):
        h, _ = self.rnn(x)
        m = (torch.arange(x.shape[1]) < n[:, None]).float().unsqueeze(-1)
        return self.fc((h * m).sum(1) / n[:, None])


def work(rank, world, port, args):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mine = partition(corpus(), rank, world)
    net = DDP(Listener())
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    g = torch.Generator().manual_seed(rank)
    for epoch in range(args.epochs):
        busy, start, tot, k = 0.0, time.perf_counter(), 0.0, 0
        for x, n, y in batches(mine, args.batch, g):
            t = time.perf_counter()
            out = net(x, n)
            busy += time.perf_counter() - t
            loss = nn.functional.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot, k = tot + loss.item(), k + 1
        print(f"rank {rank} epoch {epoch} loss {tot / k:.3f} forward {busy:.2f}s of {time.perf_counter() - start:.2f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=3e-3)
    a = p.parse_args()
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
    s.close()
    mp.spawn(work, args=(2, port, a), nprocs=2)
