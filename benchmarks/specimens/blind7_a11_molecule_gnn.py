import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind7-a11-molecule-gnn",
    "row": None,
    "title": "a handful of molecules merged from a second source carry their target in another unit (x27.2): spikes when they are drawn",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["loss-spike-data"],
    "bricks": [],
    "first_step": 15,
    "needs": "cpu",
    "crashes": False,
}

NODES, FEATS = 12, 9


def build(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, NODES, FEATS, generator=g)
    adj = (torch.rand(n, NODES, NODES, generator=g) < 0.2).float().triu(1)
    adj = adj + adj.transpose(1, 2)
    nb = adj @ x[..., :1]
    energy = (x[..., 0] * 0.4 + torch.tanh(nb[..., 0]) * x[..., 1] * 0.6).sum(1) + 0.5 * x[..., 2].abs().sum(1)
    energy = (energy - 4.8) / 2.5
    return x, adj, energy + 0.05 * torch.randn(n, generator=g)


def load_sources():
    x, adj, e = build(2394, 0)
    x2, adj2, e2 = build(6, 1)
    e2 = (e2 + 1.9) * 27.2114
    return torch.cat([x, x2]), torch.cat([adj, adj2]), torch.cat([e, e2])


class MessageLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.msg, self.own, self.norm = nn.Linear(d, d), nn.Linear(d, d), nn.LayerNorm(d)

    def forward(self, h, adj):
        deg = adj.sum(-1, keepdim=True).clamp(min=1)
        return h + F.silu(self.norm(self.own(h) + adj @ self.msg(h) / deg.sqrt()))


class GNN(nn.Module):
    def __init__(self, d=48, depth=3):
        super().__init__()
        self.embed = nn.Linear(FEATS, d)
        self.layers = nn.ModuleList(MessageLayer(d) for _ in range(depth))
        self.readout = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, x, adj):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, adj)
        return self.readout(h).sum(1).squeeze(-1) / NODES ** 0.5


if __name__ == "__main__":
    torch.manual_seed(14)
    loader = DataLoader(TensorDataset(*load_sources()), batch_size=48, shuffle=True)
    xv, av, ev = build(400, 7)
    model = GNN()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    epochs, step = 6, 0
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=epochs * len(loader))
    for epoch in range(epochs):
        model.train()
        seen = []
        for x, adj, e in loader:
            loss = F.mse_loss(model(x, adj), e)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            seen.append(loss.item())
            step += 1
        model.eval()
        with torch.no_grad():
            val = F.mse_loss(model(xv, av), ev).item()
        print(f"epoch {epoch} median {sorted(seen)[len(seen) // 2]:.4f} max {max(seen):.2f} val {val:.4f}")
