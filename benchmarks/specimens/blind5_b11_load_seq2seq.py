# Day-ahead load forecasting with a GRU encoder/decoder.
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-b11-load-seq2seq",
    "row": None,
    "title": "weight_decay=0.1 taken from an AdamW recipe is used with plain Adam (L2 in the gradient): weights are pulled to zero",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["weight-decay-too-strong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

HIST, HORIZON = 36, 12
hp = {"hidden": 40, "lr": 3e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "batch": 32, "iters": 350, "clip": 1.0}


def batch(n, g):
    t = torch.arange(HIST + HORIZON).float()
    phase = torch.rand(n, 1, generator=g) * 24
    level = torch.rand(n, 1, generator=g) * 2 - 1
    amp = 0.5 + torch.rand(n, 1, generator=g)
    daily = amp * torch.sin(2 * math.pi * (t + phase) / 24)
    half = 0.4 * torch.sin(2 * math.pi * (t + phase) / 12 + 0.6)
    temp = torch.cumsum(torch.randn(n, len(t), generator=g) * 0.05, 1)
    load = level + daily + half + temp + 0.05 * torch.randn(n, len(t), generator=g)
    hour = 2 * math.pi * (t + phase) / 24
    cal = torch.stack([hour.sin(), hour.cos()], -1)
    return load, cal


class Forecaster(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.encoder = nn.GRU(3, h, batch_first=True)
        self.decoder = nn.GRUCell(3, h)
        self.readout = nn.Sequential(nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 1))

    def forward(self, past, cal_past, cal_future, target=None, tf=0.0):
        _, h = self.encoder(torch.cat([past[..., None], cal_past], -1))
        h = h[0]
        prev, out = past[:, -1:], []
        for k in range(HORIZON):
            h = self.decoder(torch.cat([prev, cal_future[:, k]], -1), h)
            y = self.readout(h)
            out.append(y)
            prev = target[:, k:k + 1] if target is not None and random.random() < tf else y
        return torch.cat(out, 1)


def main():
    random.seed(2)
    torch.manual_seed(2)
    g = torch.Generator().manual_seed(2)
    vload, vcal = batch(256, torch.Generator().manual_seed(99))
    net = Forecaster(hp["hidden"])
    opt = torch.optim.Adam(net.parameters(), lr=hp["lr"], betas=hp["betas"], weight_decay=hp["weight_decay"])
    sch = torch.optim.lr_scheduler.CosineAnnealingLR(opt, hp["iters"], eta_min=1e-4)
    for it in range(hp["iters"]):
        load, cal = batch(hp["batch"], g)
        past, fut = load[:, :HIST], load[:, HIST:]
        tf = max(0.0, 0.5 - it / 400)
        pred = net(past, cal[:, :HIST], cal[:, HIST:], fut, tf)
        loss = F.smooth_l1_loss(pred, fut)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), hp["clip"])
        opt.step()
        sch.step()
        if (it + 1) % 50 == 0:
            net.eval()
            with torch.no_grad():
                vp = net(vload[:, :HIST], vcal[:, :HIST], vcal[:, HIST:])
                mae = (vp - vload[:, HIST:]).abs().mean()
            net.train()
            print(f"iter {it + 1} loss {loss.item():.4f} val MAE {mae:.4f}")


main()
