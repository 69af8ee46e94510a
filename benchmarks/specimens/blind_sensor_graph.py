import torch
import torch.nn as nn

TRUTH = {
    "id": "blind-sensor-graph",
    "row": None,
    "title": "graph layers sum over ~60 neighbours without degree normalisation, so every tanh is pinned at +-1",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["saturated-activations"],
    "bricks": ["convs.0", "convs.1", "convs.2"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

N_NODES, RADIUS = 140, 0.45


def smooth_field(pos, g):
    """Random sum of low-frequency waves on the unit square, scaled to [0, 1]."""
    k = torch.randn(pos.size(0), 4, 2, generator=g) * 2.5
    ph = torch.rand(pos.size(0), 4, 1, generator=g) * 6.28
    f = torch.sin(torch.einsum("bkd,bnd->bkn", k, pos) + ph).mean(1)
    lo, hi = f.amin(1, keepdim=True), f.amax(1, keepdim=True)
    return (f - lo) / (hi - lo)


def make_graphs(n, seed):
    g = torch.Generator().manual_seed(seed)
    pos = torch.rand(n, N_NODES, 2, generator=g)
    adj = (torch.cdist(pos, pos) < RADIUS).float()
    temp, hum, wind = (smooth_field(pos, g) for _ in range(3))
    clean = torch.stack([temp, hum, wind], -1)
    x = (clean + 0.15 * torch.randn(clean.shape, generator=g)).clamp(0, 1)
    avg = (adj @ clean) / adj.sum(-1, keepdim=True)
    y = avg[..., 0] * (1.5 - avg[..., 1]) + 0.8 * (avg[..., 2] - 0.5) ** 2
    return x, adj, y


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin_nbr = nn.Linear(d_in, d_out, bias=False)
        self.lin_self = nn.Linear(d_in, d_out)
        nn.init.xavier_uniform_(self.lin_nbr.weight)
        nn.init.xavier_uniform_(self.lin_self.weight)

    def forward(self, h, adj):
        messages = torch.bmm(adj, self.lin_nbr(h))
        return torch.tanh(messages + self.lin_self(h))


class SensorGNN(nn.Module):
    def __init__(self, d_in=3, hidden=48):
        super().__init__()
        self.convs = nn.ModuleList([GraphConv(d_in, hidden), GraphConv(hidden, hidden), GraphConv(hidden, hidden)])
        self.readout = nn.Linear(hidden, 1)

    def forward(self, x, adj):
        for conv in self.convs:
            x = conv(x, adj)
        return self.readout(x).squeeze(-1)


class Trainer:
    def __init__(self, model, lr, batch_size):
        self.model, self.bs = model, batch_size
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)

    def fit(self, data, val, epochs):
        x, a, y = data
        mu, sd = y.mean(), y.std()
        for ep in range(epochs):
            self.model.train()
            total = 0.0
            order = torch.randperm(len(x))
            for i in range(0, len(order), self.bs):
                b = order[i : i + self.bs]
                loss = nn.functional.mse_loss(self.model(x[b], a[b]), (y[b] - mu) / sd)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                total += loss.item() * len(b)
            if ep % 2 == 0 or ep == epochs - 1:
                print(f"epoch {ep:3d} train mse {total / len(x):.4f} val mse {self.score(val, mu, sd):.4f}")

    @torch.no_grad()
    def score(self, val, mu, sd):
        self.model.eval()
        x, a, y = val
        return nn.functional.mse_loss(self.model(x, a), (y - mu) / sd).item()


if __name__ == "__main__":
    torch.manual_seed(11)
    tr = Trainer(SensorGNN(), lr=3e-3, batch_size=16)
    tr.fit(make_graphs(240, 1), make_graphs(64, 2), epochs=14)
