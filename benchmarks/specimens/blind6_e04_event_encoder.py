"""Transformer encoder over event windows, trained by a fused-workspace Adam."""
import torch
from torch import nn

TRUTH = {
    "id": "blind6-e04-event-encoder",
    "row": None,
    "title": "Adam moments are slices of a workspace that still holds the gradient-noise probe's sums; they are never zeroed",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-state-uninitialised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

torch.manual_seed(21)


class Workspace:
    """One flat allocation, handed out in slices."""

    def __init__(self, numel):
        self.flat = torch.empty(numel)
        self.top = 0

    def take_like(self, t):
        n = t.numel()
        if self.top + n > self.flat.numel():
            raise MemoryError("workspace exhausted")
        out = self.flat[self.top:self.top + n].view_as(t)
        self.top += n
        return out

    def reset(self):
        self.top = 0


class WorkspaceAdam(torch.optim.Optimizer):
    def __init__(self, params, workspace, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    "step": 0,
                    "exp_avg": workspace.take_like(p),
                    "exp_avg_sq": workspace.take_like(p),
                }

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                s["step"] += 1
                m, v = s["exp_avg"], s["exp_avg_sq"]
                m.lerp_(p.grad, 1 - b1)
                v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                denom = (v / (1 - b2 ** s["step"])).sqrt_().add_(group["eps"])
                p.addcdiv_(m, denom, value=-group["lr"] / (1 - b1 ** s["step"]))


class EventModel(nn.Module):
    def __init__(self, vocab=24, dim=32, classes=6, length=20):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x) + self.pos).mean(1))


def sample(n):
    x = torch.randint(6, 24, (n, 20))
    y = torch.randint(0, 6, (n,))
    # the marker of the class appears three times somewhere in the window
    cols = torch.rand(n, 20).argsort(1)[:, :3]
    x.scatter_(1, cols, y[:, None].expand(-1, 3))
    return x, y


def noise_scale(model, ws, n_micro=16):
    """Critical batch size estimate (McCandlish et al.)."""
    params = list(model.parameters())
    sums = [(ws.take_like(p).zero_(), ws.take_like(p).zero_()) for p in params]
    for _ in range(n_micro):
        x, y = sample(32)
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
        for (s, q), g in zip(sums, torch.autograd.grad(loss, params)):
            s += g
            q += g * g
    big = sum((s / n_micro).square().sum() for s, _ in sums)
    small = sum((q / n_micro).sum() for _, q in sums)
    ws.reset()
    return ((small - big) / big).item() * 32


def main():
    model = EventModel()
    ws = Workspace(2 * sum(p.numel() for p in model.parameters()))
    print(f"noise scale {noise_scale(model, ws):.0f}")
    opt = WorkspaceAdam(model.parameters(), ws, lr=2e-3)
    crit = nn.CrossEntropyLoss()
    for step in range(250):
        x, y = sample(48)
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0 or step == 249:
            print(step, round(loss.item(), 4))
    model.eval()
    with torch.no_grad():
        x, y = sample(1000)
        print("accuracy", (model(x).argmax(1) == y).float().mean().item())


if __name__ == "__main__":
    main()
