import argparse
import os
import tempfile
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-preempted_autoencoder",
    "title": "The checkpoint stores the optimizer under one key and the resume looks for another, so the Adam moments are silently lost at the restart.",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["resume-state-lost", "checkpoint-incomplete"],
    "bricks": [],
    "first_step": 150,
    "needs": "cpu",
    "crashes": False,
}


class Encoder(nn.Module):
    def __init__(self, d, w, z):
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(d, w), nn.Linear(w, w), nn.Linear(w, z)

    def forward(self, x):
        return self.out(F.gelu(self.fc2(F.gelu(self.fc1(x)))))


class AE(nn.Module):
    def __init__(self, d=48, w=128, z=6):
        super().__init__()
        self.enc = Encoder(d, w, z)
        self.dec = nn.Sequential(nn.Linear(z, w), nn.GELU(), nn.Linear(w, w), nn.GELU(), nn.Linear(w, d))

    def forward(self, x):
        return self.dec(self.enc(x))


def sensors(n, seed):
    rng = np.random.default_rng(seed)
    w1, w2 = np.random.default_rng(0).normal(size=(5, 24)), np.random.default_rng(1).normal(size=(24, 48))
    x = np.tanh(rng.normal(size=(n, 5)) @ w1) @ w2 / 3.5
    return torch.tensor(x + 0.01 * rng.normal(size=x.shape), dtype=torch.float32)


class Trainer:
    def __init__(self, args, data):
        torch.manual_seed(args.seed)
        self.args, self.data, self.step = args, data, 0
        self.model = AE()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr, betas=(0.9, 0.999))
        self.gen = torch.Generator().manual_seed(args.seed)

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "optimizer": self.opt.state_dict(), "step": self.step,
                    "rng": self.gen.get_state()}, path)

    def maybe_resume(self, path):
        if not os.path.exists(path):
            return
        ck = torch.load(path, weights_only=True)
        self.model.load_state_dict(ck["model"])
        if "opt" in ck:
            self.opt.load_state_dict(ck["opt"])
        self.step = ck["step"]
        self.gen.set_state(ck["rng"])
        print("resumed at step", self.step)

    def run(self, until, path):
        while self.step < until:
            x = self.data[torch.randint(0, len(self.data), (self.args.batch,), generator=self.gen)]
            loss = F.mse_loss(self.model(x), x)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if self.step % 10 == 0 or 148 <= self.step <= 158:
                print(f"step {self.step} mse {loss.item():.5f}")
            self.step += 1
        self.save(path)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--slices", type=int, nargs="+", default=[150, 300])
    args = p.parse_args()
    torch.set_num_threads(1)
    data = sensors(4000, 3)
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "last.pt")
        for until in args.slices:
            t = Trainer(args, data)
            t.maybe_resume(path)
            t.run(until, path)


if __name__ == "__main__":
    main()
