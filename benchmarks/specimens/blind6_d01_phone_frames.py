"""Frame-level phone classifier on synthetic filterbank features."""
import argparse
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind6-d01-phone-frames",
    "row": None,
    "title": "hand-written global-norm clip forgets the square root, so it divides by the squared norm",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["grad-clip-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

N_PHONE, N_MEL = 12, 20


class Corpus:
    def __init__(self, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.proto = torch.randn(N_PHONE, N_MEL, generator=g)
        self.g = torch.Generator().manual_seed(seed + 1)

    def batch(self, b, t=48):
        seg = torch.randint(0, N_PHONE, (b, t // 4), generator=self.g)
        y = seg.repeat_interleave(4, dim=1)
        x = self.proto[y]
        x = 0.6 * x + 0.4 * torch.roll(x, 1, dims=1)          # co-articulation
        x = x + 0.7 * torch.randn(x.shape, generator=self.g)
        return x, y


class AcousticModel(nn.Module):
    def __init__(self, hid=64):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(N_MEL, hid, 5, padding=2), nn.ReLU())
        self.norm = nn.LayerNorm(hid)
        self.rnn = nn.GRU(hid, hid, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hid, N_PHONE)

    def forward(self, x):
        h = self.front(x.transpose(1, 2)).transpose(1, 2)
        h, _ = self.rnn(self.norm(h))
        return self.out(h)


def limit_gradients(params, max_norm):
    params = [p for p in params if p.grad is not None]
    total = torch.zeros(())
    for p in params:
        total = total + p.grad.detach().pow(2).sum()
    scale = max_norm / (total + 1e-6)
    if scale < 1.0:
        for p in params:
            p.grad.mul_(scale)
    return total.item()


def evaluate(model, batches):
    model.eval()
    ok = n = 0
    with torch.no_grad():
        for x, y in batches:
            ok += (model(x).argmax(-1) == y).sum().item()
            n += y.numel()
    model.train()
    return ok / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=200)
    ap.add_argument("--lr", type=float, default=0.01)
    ap.add_argument("--max-norm", type=float, default=5.0)
    args = ap.parse_args()
    torch.manual_seed(3)
    data = Corpus()
    held_out = [data.batch(16) for _ in range(4)]
    model = AcousticModel()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / args.updates)))
    for it in range(args.updates):
        x, y = data.batch(16)
        logits = model(x)
        # summed over frames, averaged over utterances
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / x.size(0)
        opt.zero_grad()
        loss.backward()
        limit_gradients(model.parameters(), args.max_norm)
        opt.step()
        sched.step()
        if it % 25 == 0 or it == args.updates - 1:
            print(f"it {it:4d} nll/frame {loss.item() / x.size(1):.3f} "
                  f"acc {evaluate(model, held_out):.3f} lr {opt.param_groups[0]['lr']:.4f}")


if __name__ == "__main__":
    main()
