import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-citation-graph",
    "row": None,
    "title": "weight decay 3e-1 instead of 3e-4 with SGD at lr 0.2 and momentum: the decay pulls all weights to zero",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["weight-decay-too-strong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

settings = {
    "nodes": 600,
    "classes": 5,
    "features": 64,
    "hidden": 32,
    "dropout": 0.3,
    "optim": {"lr": 0.2, "momentum": 0.9, "weight_decay": 3e-1},
    "epochs": 300,
}


def make_graph(n, c, f, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, c, (n,), generator=g)
    same = (y[:, None] == y[None]).float()
    p = 0.03 * same + 0.003 * (1 - same)
    a = torch.triu((torch.rand(n, n, generator=g) < p).float(), 1)
    a = a + a.t() + torch.eye(n)
    d = a.sum(1).rsqrt()
    topics = torch.randn(c, f, generator=g)
    x = 0.35 * topics[y] + torch.randn(n, f, generator=g)
    return d[:, None] * a * d[None], x, y


class GraphConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(i, o))
        self.bias = nn.Parameter(torch.zeros(o))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, a, x):
        return a @ (x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, f, h, c, p):
        super().__init__()
        self.gc1, self.gc2, self.gc3 = GraphConv(f, h), GraphConv(h, h), GraphConv(h, c)
        self.drop = nn.Dropout(p)

    def forward(self, a, x):
        x = self.drop(F.relu(self.gc1(a, x)))
        x = self.drop(F.relu(self.gc2(a, x)))
        return self.gc3(a, x)


torch.manual_seed(12)
adj, feats, labels = make_graph(settings["nodes"], settings["classes"], settings["features"])
order = torch.randperm(len(labels))
train_idx, val_idx = order[:200], order[200:]
model = GCN(settings["features"], settings["hidden"], settings["classes"], settings["dropout"])
optimizer = torch.optim.SGD(model.parameters(), **settings["optim"])

for epoch in range(1, settings["epochs"] + 1):
    model.train()
    optimizer.zero_grad()
    out = model(adj, feats)
    loss = F.cross_entropy(out[train_idx], labels[train_idx])
    loss.backward()
    optimizer.step()
    if epoch % 25 == 0:
        model.eval()
        with torch.no_grad():
            out = model(adj, feats)
            acc = (out[val_idx].argmax(1) == labels[val_idx]).float().mean().item()
        print(f"epoch {epoch:3d} loss {loss.item():.4f} val acc {acc:.3f}")
