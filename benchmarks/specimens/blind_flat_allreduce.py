import os
import uuid

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-flat-allreduce",
    "title": "hand-made data parallelism without DDP: broadcast at the start, one flat all-reduce per step, other dropout noise on each rank",
    "family": "gpt",
    "needs": "cpu",
    "trap": "no DDP wrapper, ranks seeded differently, per-rank batches and losses differ",
}

WORLD, STEPS, BATCH, VOCAB, LENGTH = 2, 200, 16, 16, 16


class Tagger(nn.Module):
    """Marks for every token whether it occurred before in the sequence."""

    def __init__(self, d=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(0.02 * torch.randn(LENGTH, d))
        layer = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.05, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(d, 2)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.body(self.embed(ids) + self.pos, mask=mask, is_causal=True))


def sample(n, gen):
    ids = torch.randint(0, VOCAB, (n, LENGTH), generator=gen)
    same = ids[:, :, None] == ids[:, None, :]
    return ids, same.tril(-1).any(-1).long()


def average_gradients(params):
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat /= WORLD
    at = 0
    for p in params:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


def run(rank, init):
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(1000 + rank)
    gen = torch.Generator().manual_seed(500 + rank)
    model = Tagger()
    params = list(model.parameters())
    for p in params:
        dist.broadcast(p.data, src=0)
    opt = torch.optim.AdamW(params, lr=3e-3, weight_decay=0.02)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=STEPS, pct_start=0.15)
    ids_v, y_v = sample(300, torch.Generator().manual_seed(3))
    for step in range(STEPS):
        ids, y = sample(BATCH, gen)
        model.train()
        loss = F.cross_entropy(model(ids).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        average_gradients(params)
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        if (step + 1) % 40 == 0:
            model.eval()
            with torch.no_grad():
                acc = (model(ids_v).argmax(-1) == y_v).float().mean().item()
            print(
                f"[{rank}] step {step + 1} loss {loss.item():.4f} acc {acc:.3f} sum {sum(p.sum().item() for p in params):.5f}",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    path = os.path.join(os.getcwd(), f"rendezvous_{uuid.uuid4().hex}")
    try:
        mp.spawn(run, args=("file://" + path,), nprocs=WORLD)
    finally:
        if os.path.exists(path):
            os.remove(path)
