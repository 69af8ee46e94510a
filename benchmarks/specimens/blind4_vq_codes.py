from dataclasses import dataclass
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-vq_codes",
    "title": "The quantiser returns the looked-up codes without a straight-through term and both sides of the commitment term are detached, so no gradient reaches the encoder.",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["no-gradient-path"],
    "bricks": ["encoder", "quant", "encoder.0", "encoder.2", "encoder.4"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Cfg:
    codes: int = 64
    dim: int = 16
    width: int = 24
    beta: float = 0.25
    batch: int = 32
    steps: int = 200
    lr: float = 2e-3
    seed: int = 4


def shapes(n, seed, s=16):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:s, :s]
    out = np.zeros((n, 1, s, s), np.float32)
    for i in range(n):
        cx, cy, r = rng.uniform(4, 12), rng.uniform(4, 12), rng.uniform(2, 5)
        if rng.random() < 0.5:
            out[i, 0] = ((xx - cx) ** 2 + (yy - cy) ** 2 < r * r)
        else:
            out[i, 0] = (abs(xx - cx) < r) & (abs(yy - cy) < r)
    return torch.from_numpy(out + 0.05 * rng.normal(size=out.shape).astype(np.float32))


class Quantiser(nn.Module):
    def __init__(self, codes, dim, beta):
        super().__init__()
        self.book = nn.Embedding(codes, dim)
        nn.init.uniform_(self.book.weight, -0.2, 0.2)
        self.beta = beta

    def forward(self, z):
        b, c, h, w = z.shape
        flat = z.detach().permute(0, 2, 3, 1).reshape(-1, c)
        d = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.book.weight.t() + self.book.weight.pow(2).sum(1)
        idx = d.argmin(1)
        q = self.book(idx)
        commit = F.mse_loss(flat, q.detach())
        codebook = F.mse_loss(q, flat)
        q = q.view(b, h, w, c).permute(0, 3, 1, 2)
        return q, codebook + self.beta * commit, idx


class VQAE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        w = cfg.width
        self.encoder = nn.Sequential(nn.Conv2d(1, w, 4, 2, 1), nn.ReLU(), nn.Conv2d(w, w, 4, 2, 1), nn.ReLU(), nn.Conv2d(w, cfg.dim, 1))
        self.quant = Quantiser(cfg.codes, cfg.dim, cfg.beta)
        self.decoder = nn.Sequential(nn.Conv2d(cfg.dim, w, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(w, w, 4, 2, 1), nn.ReLU(),
                                     nn.ConvTranspose2d(w, 1, 4, 2, 1))

    def forward(self, x):
        q, aux, idx = self.quant(self.encoder(x))
        return self.decoder(q), aux, idx


def main():
    cfg = Cfg()
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    data, val = shapes(2000, 0), shapes(200, 1)
    model = VQAE(cfg)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    g = torch.Generator().manual_seed(cfg.seed)
    for step in range(cfg.steps):
        x = data[torch.randint(0, len(data), (cfg.batch,), generator=g)]
        rec, aux, idx = model(x)
        mse = F.mse_loss(rec, x)
        loss = mse + aux
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"step {step} mse {mse.item():.4f} aux {aux.item():.4f} used {idx.unique().numel()}")
    with torch.no_grad():
        rec, _, idx = model(val)
    print("val mse", F.mse_loss(rec, val).item(), "codes used", idx.unique().numel())


if __name__ == "__main__":
    main()
