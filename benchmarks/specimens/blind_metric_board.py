import collections
import resource
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-metric-board",
    "row": None,
    "title": "the probe loss of every step is stored on the metric board with its graph, so all its activations stay in memory",
    "family": "cnn",
    "kind": "performance",
    "contracts": [],
    "root_causes": ["memory-leak"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Board:
    def __init__(self):
        self.curves = collections.defaultdict(list)

    def log(self, **kw):
        for k, v in kw.items():
            self.curves[k].append(v)

    def mean(self, k, last=20):
        vals = self.curves[k][-last:]
        return float(sum(vals) / len(vals))


class Denoiser(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.inp = nn.Conv2d(1, ch, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(ch, ch, 3, padding=1) for _ in range(3))
        self.outp = nn.Conv2d(ch, 1, 3, padding=1)

    def forward(self, x):
        h = F.relu(self.inp(x))
        for c in self.body:
            h = h + F.relu(c(h))
        return x - self.outp(h)


def images(n, g, size=28):
    low = torch.randn(n, 1, 7, 7, generator=g)
    return F.interpolate(low, size=size, mode="bilinear", align_corners=False)


class Experiment:
    def __init__(self, steps=170):
        torch.manual_seed(0)
        self.g = torch.Generator().manual_seed(1)
        self.net = Denoiser()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=2e-3)
        self.board = Board()
        self.steps = steps
        self.probe = images(12, self.g)
        self.probe_noisy = self.probe + 0.5 * torch.randn(self.probe.shape, generator=self.g)

    def train_step(self):
        clean = images(12, self.g)
        noisy = clean + 0.5 * torch.randn(clean.shape, generator=self.g)
        loss = F.mse_loss(self.net(noisy), clean)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def probe_loss(self):
        self.net.eval()
        out = F.mse_loss(self.net(self.probe_noisy), self.probe)
        self.net.train()
        return out

    def run(self):
        for step in range(self.steps):
            self.board.log(train=self.train_step(), probe=self.probe_loss())
            if (step + 1) % 20 == 0:
                rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
                print(f"{step + 1:4d} train {self.board.mean('train'):.4f} probe {self.board.mean('probe'):.4f} rss {rss} MB")


if __name__ == "__main__":
    Experiment().run()
