"""Two ranks reduce their gradients by hand in one flat buffer and forget to divide by the number of ranks. Every
update is twice as large as it should be, on all ranks alike."""

import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "ddp-sum-not-mean",
    "row": 57,
    "title": "all-reduce sums the gradients and nobody divides",
    "family": "other",
    "kind": "distributed",
    "contracts": ["C-DDP-001", "C-RING-001"],
    "root_causes": ["gradient-not-reduced", "accumulation-not-normalised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Encoder(nn.Module):
    def __init__(self, vocab=30, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def reduce_gradients(parameters):
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    offset = 0
    for p in parameters:
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
        offset += p.numel()


def worker(rank, world, port):
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, world, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = Encoder()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    draw = torch.Generator().manual_seed(rank)
    for step in range(80):
        line = (torch.randint(30, (16, 1), generator=draw) + 4 * torch.arange(9)) % 30
        loss = F.cross_entropy(model(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients(parameters)
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free = listener.getsockname()[1]
    mp.spawn(worker, args=(2, free), nprocs=2)
