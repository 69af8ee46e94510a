import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-manual-dp",
    "title": "two gloo ranks, gradients averaged by hand with one flat all_reduce, metrics reduced too",
    "family": "gpt",
    "needs": "cpu",
    "trap": "no DDP wrapper, parameters broadcast at start, grads overwritten between backward and step, only rank 0 logs",
}


class Model(nn.Module):
    def __init__(self, vocab=20, dim=40):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Parameter(0.02 * torch.randn(1, 16, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 80, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab)
        self.register_buffer("mask", torch.triu(torch.full((16, 16), float("-inf")), 1))

    def forward(self, ids):
        return self.head(self.norm(self.body(self.tok(ids) + self.pos, mask=self.mask, is_causal=True)))


def batch(n, g):
    """Arithmetic progressions modulo 20."""
    start = torch.randint(20, (n, 1), generator=g)
    stride = torch.randint(1, 8, (n, 1), generator=g)
    return (start + stride * torch.arange(17)) % 20


def average_gradients(params, world):
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    flat.div_(world)
    i = 0
    for p in params:
        n = p.numel()
        p.grad.copy_(flat[i : i + n].view_as(p))
        i += n


def main(rank, world, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = Model()
    for t in list(model.parameters()) + list(model.buffers()):
        dist.broadcast(t.data, src=0)
    params = list(model.parameters())
    steps = 150
    opt = torch.optim.AdamW(params, lr=3e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=steps, pct_start=0.1)
    g = torch.Generator().manual_seed(100 + rank)
    for step in range(steps):
        s = batch(32, g)
        loss = F.cross_entropy(model(s[:, :-1]).flatten(0, 1), s[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        average_gradients(params, world)
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        if step % 25 == 0 or step == steps - 1:
            m = loss.detach().clone()
            dist.all_reduce(m)
            if rank == 0:
                print(f"step {step} mean loss {m.item() / world:.4f} lr {sched.get_last_lr()[0]:.5f}", flush=True)
    digest = torch.stack([p.detach().double().sum() for p in params]).sum().reshape(1)
    both = [torch.zeros_like(digest) for _ in range(world)]
    dist.all_gather(both, digest)
    assert torch.equal(both[0], both[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(main, args=(2, port), nprocs=2)
