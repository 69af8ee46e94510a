import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

TRUTH = {
    "id": "blind-vae-parallel",
    "row": None,
    "title": "the loss is computed through ddp.module.elbo(), which goes around the DDP forward: gradients stay local to each rank",
    "family": "other",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["gradient-not-reduced"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class VAE(nn.Module):
    def __init__(self, d=64, h=128, k=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.mu, self.logvar = nn.Linear(h, k), nn.Linear(h, k)
        self.dec = nn.Sequential(nn.Linear(k, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, d))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h).clamp(-8, 8)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar

    def elbo(self, x, beta=1.0):
        rec, mu, logvar = self(x)
        recon = F.binary_cross_entropy_with_logits(rec, x, reduction="none").sum(1).mean()
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return recon + beta * kl, recon, kl


def glyphs(n, seed):
    g = torch.Generator().manual_seed(seed)
    img = torch.zeros(n, 8, 8)
    r, c = torch.randint(0, 5, (2, n), generator=g)
    kind = torch.randint(0, 3, (n,), generator=g)
    for i in range(n):
        a, b = r[i].item(), c[i].item()
        if kind[i] == 0:
            img[i, a : a + 4, b : b + 4] = 1
        elif kind[i] == 1:
            img[i, a, :] = 1
            img[i, :, b] = 1
        else:
            img[i, a : a + 4, b] = 1
            img[i, a + 3, b : b + 4] = 1
    return img.view(n, 64)


def run(rank, args, init):
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=args.world)
    torch.set_num_threads(1)
    torch.manual_seed(21)
    vae = DistributedDataParallel(VAE())
    torch.manual_seed(100 + rank)

    data = glyphs(args.samples, 0)[rank :: args.world]
    test = glyphs(400, 1)
    opt = torch.optim.Adam(vae.parameters(), lr=args.lr)
    for step in range(args.steps):
        x = data[torch.randint(0, len(data), (args.batch,))]
        loss, recon, kl = vae.module.elbo(x, beta=min(1.0, step / 100))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 50 == 0:
            vae.eval()
            with torch.no_grad():
                t = vae.module.elbo(test)[0]
            vae.train()
            print(
                f"rank {rank} step {step + 1} elbo {loss.item():.2f} recon {recon.item():.2f} kl {kl.item():.2f} test {t.item():.2f} "
                f"w {vae.module.mu.weight.abs().sum().item():.4f}",
                flush=True,
            )
    dist.barrier()
    if rank == 0:
        torch.save(vae.module.state_dict(), "vae.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--world", type=int, default=2)
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--samples", type=int, default=1200)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    fd, path = tempfile.mkstemp(prefix="pg_", dir=os.getcwd())
    os.close(fd)
    os.unlink(path)
    mp.spawn(run, args=(args, "file://" + path), nprocs=args.world)
    if os.path.exists(path):
        os.unlink(path)
