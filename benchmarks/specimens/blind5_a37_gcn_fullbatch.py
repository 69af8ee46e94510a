"""Semi-supervised node classification with a hand-written GCN (full batch)."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind5-a37-gcn-fullbatch", "title": "transductive GCN on a stochastic block model, full-batch steps, early stopping with best weights",
           "family": "other", "needs": "cpu",
           "trap": "the same full-batch input every step, loss on a masked subset of nodes, strong dropout, train loss above val loss, stops early"}


def sbm(per=120, k=5, p_in=0.06, p_out=0.006, feat=40):
    y = torch.arange(k).repeat_interleave(per)
    n = len(y)
    prob = torch.where(y[:, None] == y[None], p_in, p_out)
    a = torch.triu((torch.rand(n, n) < prob).float(), 1)
    a = a + a.t() + torch.eye(n)
    d = a.sum(1).rsqrt()
    x = torch.randn(k, feat)[y] * 0.5 + torch.randn(n, feat)
    return (d[:, None] * a * d[None]).to_sparse(), x, y


class GCNLayer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o, bias=False)
        self.bias = nn.Parameter(torch.zeros(o))

    def forward(self, adj, x):
        return torch.sparse.mm(adj, self.lin(x)) + self.bias


class GCN(nn.Module):
    def __init__(self, i, h, o, drop=0.5):
        super().__init__()
        self.g1, self.g2 = GCNLayer(i, h), GCNLayer(h, o)
        self.drop = nn.Dropout(drop)

    def forward(self, adj, x):
        h = F.relu(self.g1(adj, self.drop(x)))
        return self.g2(adj, self.drop(h))


class EarlyStop:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.state = patience, float("inf"), 0, None

    def update(self, value, model):
        if value < self.best - 1e-4:
            self.best, self.bad, self.state = value, 0, copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


def main():
    torch.manual_seed(40)
    adj, x, y = sbm()
    perm = torch.randperm(len(y))
    tr, va, te = perm[:150], perm[150:300], perm[300:]
    model = GCN(x.size(1), 32, 5)
    opt = torch.optim.Adam([{"params": model.g1.parameters(), "weight_decay": 5e-4}, {"params": model.g2.parameters()}], lr=0.01)
    stop = EarlyStop(30)
    for ep in range(400):
        model.train()
        loss = F.cross_entropy(model(adj, x)[tr], y[tr])
        opt.zero_grad()
        loss.backward()
        opt.step()
        model.eval()
        with torch.no_grad():
            out = model(adj, x)
            vl = F.cross_entropy(out[va], y[va]).item()
            acc = (out[va].argmax(1) == y[va]).float().mean().item()
        if ep % 20 == 0:
            print(f"{ep:3d} train {loss.item():.4f} val {vl:.4f} acc {acc:.3f}")
        if stop.update(vl, model):
            print(f"early stop at epoch {ep}")
            break
    model.load_state_dict(stop.state)
    model.eval()
    with torch.no_grad():
        print(f"test acc {(model(adj, x)[te].argmax(1) == y[te]).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
