import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-tabular-halfweights",
    "row": None,
    "title": "the whole model (master weights too) is kept in bfloat16: most AdamW updates are below half a unit in the last place and are rounded away",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["bf16-precision-loss"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class ResidualMLP(nn.Module):
    def __init__(self, n_in, width, depth, n_out):
        super().__init__()
        self.inp = nn.Linear(n_in, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(depth)
        )
        self.out = nn.Linear(width, n_out)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = h + b(h)
        return self.out(h)


class Task:
    def __init__(self, n_in=20, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.w = torch.randn(n_in, 6, generator=g) / n_in**0.5
        self.g = g
        self.n_in = n_in

    def draw(self, n):
        x = torch.randn(n, self.n_in, generator=self.g)
        z = x @ self.w
        score = torch.stack([z[:, 0], z[:, 1], z[:, 2] + z[:, 0] * 0.3, z[:, 3], z[:, 4] * z[:, 5]], 1)
        return x, (score * 2).argmax(1)


def train(device="cpu", precision=torch.bfloat16, steps=400):
    torch.manual_seed(0)
    task = Task()
    net = ResidualMLP(20, 96, 3, 5).to(device=device, dtype=precision)
    opt = torch.optim.AdamW(net.parameters(), lr=4e-5, weight_decay=0.0)
    vx, vy = task.draw(1000)
    for step in range(1, steps + 1):
        x, y = task.draw(64)
        logits = net(x.to(precision)).float()
        loss = F.cross_entropy(logits, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 50 == 0:
            net.eval()
            with torch.no_grad():
                v = net(vx.to(precision)).float()
                print(f"step {step} train {loss.item():.4f} val {F.cross_entropy(v, vy).item():.4f} acc {(v.argmax(1) == vy).float().mean():.3f}")
            net.train()


if __name__ == "__main__":
    train()
