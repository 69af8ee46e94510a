import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind6-e11-molecule-gnn",
    "row": None,
    "title": "--dropout 0.5 is parsed but never passed to the network, whose default is 0.0; the small set is memorised",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["config-unused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def get_args():
    ap = argparse.ArgumentParser(description="graph classification with message passing")
    ap.add_argument("--hidden", type=int, default=64)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--dropout", type=float, default=0.5)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--weight-decay", type=float, default=1e-4)
    ap.add_argument("--epochs", type=int, default=50)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--graphs", type=int, default=256)
    ap.add_argument("--seed", type=int, default=5)
    return ap.parse_args()


def make_graphs(n, seed, nodes=12, feats=24):
    g = torch.Generator().manual_seed(seed)
    rule = torch.randn(feats, generator=torch.Generator().manual_seed(1234))
    x = torch.randn(n, nodes, feats, generator=g)
    a = (torch.rand(n, nodes, nodes, generator=g) < 0.2).float()
    a = ((a + a.transpose(1, 2)) > 0).float()
    a = a * (1 - torch.eye(nodes)) + torch.eye(nodes)
    a = a / a.sum(-1, keepdim=True)
    score = (a @ (x @ rule[:, None])).mean(1).squeeze(-1) / x.size(-1) ** 0.5 * nodes ** 0.5
    p = torch.sigmoid(2.5 * score)
    return x, a, torch.bernoulli(p, generator=g)


class MessagePassing(nn.Module):
    def __init__(self, d_in, d_out, dropout):
        super().__init__()
        self.own = nn.Linear(d_in, d_out)
        self.msg = nn.Linear(d_in, d_out, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, a):
        return self.drop(F.relu(self.own(x) + a @ self.msg(x)))


class GraphNet(nn.Module):
    def __init__(self, d_in, hidden, layers, dropout=0.0):
        super().__init__()
        dims = [d_in] + [hidden] * layers
        self.convs = nn.ModuleList(MessagePassing(i, o, dropout) for i, o in zip(dims, dims[1:]))
        self.readout = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1))

    def forward(self, x, a):
        for conv in self.convs:
            x = conv(x, a)
        return self.readout(x.mean(1)).squeeze(-1)


def main():
    args = get_args()
    print(vars(args))
    torch.manual_seed(args.seed)
    x, a, y = make_graphs(args.graphs, 1)
    vx, va, vy = make_graphs(500, 2)
    net = GraphNet(x.size(-1), args.hidden, args.layers)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=args.epochs)
    for epoch in range(args.epochs):
        net.train()
        tot = 0.0
        for idx in torch.randperm(len(y)).split(args.batch_size):
            loss = F.binary_cross_entropy_with_logits(net(x[idx], a[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item() * len(idx)
        sched.step()
        net.eval()
        with torch.no_grad():
            out = net(vx, va)
            vl = F.binary_cross_entropy_with_logits(out, vy).item()
            acc = ((out > 0).float() == vy).float().mean().item()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: train {tot / len(y):.4f} valid {vl:.4f} acc {acc:.3f}")


if __name__ == "__main__":
    main()
