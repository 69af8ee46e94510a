import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-workspace-adam",
    "row": 10,
    "title": "a hand-written Adam takes its moments from a reused workspace without zeroing them: they start as pixel values",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-state-uninitialised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Workspace:
    """One flat buffer, handed out in pieces, so that nothing is allocated later."""

    def __init__(self, numel):
        self.flat = torch.empty(numel)
        self.used = 0

    def take(self, shape):
        n = torch.Size(shape).numel()
        piece = self.flat[self.used : self.used + n].view(shape)
        self.used += n
        return piece

    def rewind(self):
        self.used = 0


class PooledAdam(torch.optim.Optimizer):
    def __init__(self, params, workspace, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"step": 0, "exp_avg": workspace.take(p.shape), "exp_avg_sq": workspace.take(p.shape)}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                st["step"] += 1
                st["exp_avg"].mul_(b1).add_(p.grad, alpha=1 - b1)
                st["exp_avg_sq"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                m = st["exp_avg"] / (1 - b1 ** st["step"])
                v = st["exp_avg_sq"] / (1 - b2 ** st["step"])
                p.addcdiv_(m, v.sqrt().add_(group["eps"]), value=-group["lr"])


def faces(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 8, (n,), generator=g)
    proto = torch.rand(8, 1, 5, 5, generator=torch.Generator().manual_seed(64))
    img = F.interpolate(proto, size=14, mode="bilinear", align_corners=True)[y]
    img = 0.7 * img + 0.3 * torch.rand(n, 1, 14, 14, generator=g)
    return img.flatten(1), y


class Classifier(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.layers = nn.Sequential(nn.Linear(196, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, x):
        return self.layers((x - self.mean) / self.std)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = faces(4000, 1)
    xv, yv = faces(800, 2)
    ws = Workspace(x.numel())
    staged = ws.take(x.shape).copy_(x)
    model = Classifier(staged.mean(), staged.std())
    ws.rewind()
    opt = PooledAdam(model.parameters(), ws, lr=1e-3)
    for epoch in range(5):
        model.train()
        perm = torch.randperm(len(y))
        for k in range(0, len(y) - 39, 40):
            i = perm[k : k + 40]
            loss = F.cross_entropy(model(x[i]), y[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            acc = (model(xv).argmax(1) == yv).float().mean().item()
        print(f"epoch {epoch} loss {loss.item():.4f} val acc {acc:.3f}")


if __name__ == "__main__":
    main()
