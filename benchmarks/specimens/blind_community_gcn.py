"""Node classification on a stochastic block model with a two-layer GCN."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-community-gcn",
    "row": None,
    "title": "weight decay 5 (meant 5e-4) in AdamW shrinks the weights by 15 % per step",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["weight-decay-too-strong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def graph(n_nodes, k, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(k, (n_nodes,), generator=g)
    same = (y[:, None] == y[None, :]).float()
    p = 0.10 * same + 0.02 * (1 - same)
    a = (torch.rand(n_nodes, n_nodes, generator=g) < p).float().triu(1)
    a = a + a.t() + torch.eye(n_nodes)
    d = a.sum(1).rsqrt()
    centers = torch.randn(k, 32, generator=g)
    x = 0.4 * centers[y] + torch.randn(n_nodes, 32, generator=g)
    return d[:, None] * a * d[None, :], x, y


class GraphConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)

    def forward(self, adj, x):
        return adj @ self.lin(x)


class GCN(nn.Module):
    def __init__(self, i, h, o, p):
        super().__init__()
        self.conv1, self.conv2, self.drop = GraphConv(i, h), GraphConv(h, o), nn.Dropout(p)

    def forward(self, adj, x):
        return self.conv2(adj, self.drop(F.relu(self.conv1(adj, x))))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--wd", type=float, default=5)
    ap.add_argument("--hidden", type=int, default=32)
    ap.add_argument("--dropout", type=float, default=0.3)
    ap.add_argument("--steps", type=int, default=200)
    a = ap.parse_args()
    torch.manual_seed(0)
    adj, x, y = graph(700, 7, 3)
    order = torch.randperm(700, generator=torch.Generator().manual_seed(1))
    train, val = order[:350], order[350:]
    model = GCN(32, a.hidden, 7, a.dropout)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=a.wd)
    for it in range(a.steps):
        model.train()
        opt.zero_grad()
        loss = F.cross_entropy(model(adj, x)[train], y[train])
        loss.backward()
        opt.step()
        if it % 20 == 19:
            model.eval()
            with torch.no_grad():
                out = model(adj, x)
            acc = (out[val].argmax(1) == y[val]).float().mean().item()
            print(
                f"it {it + 1} loss {loss.item():.4f} val {F.cross_entropy(out[val], y[val]).item():.4f} acc {acc:.3f}"
            )


main()
