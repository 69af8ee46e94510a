import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-b04-gat-nodes",
    "row": None,
    "title": "decay/no-decay split by name suffix drops the attention layers' own parameters (kernel, att_src, att_dst) from the optimizer",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-missing-parameters"],
    "bricks": ["conv1", "conv2"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

SEED, N, C, F_IN = 4, 420, 6, 40


def sbm():
    rng = np.random.default_rng(SEED)
    y = rng.integers(0, C, N)
    same = y[:, None] == y[None]
    p = np.where(same, 0.045, 0.008)
    a = np.triu(rng.random((N, N)) < p, 1)
    a = a | a.T | np.eye(N, dtype=bool)
    centers = rng.normal(size=(C, 5))
    x = rng.normal(size=(N, F_IN))
    x[:, :5] += 0.9 * centers[y]
    x[:, 5:] *= 1.5
    perm = rng.permutation(N)
    return (torch.tensor(x, dtype=torch.float32), torch.tensor(a), torch.tensor(y),
            torch.tensor(perm[:210]), torch.tensor(perm[210:]))


class GATConv(nn.Module):
    def __init__(self, cin, cout, heads):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(heads, cin, cout))
        self.att_src = nn.Parameter(torch.empty(heads, cout, 1))
        self.att_dst = nn.Parameter(torch.empty(heads, cout, 1))
        self.bias = nn.Parameter(torch.zeros(heads * cout))
        for p in (self.kernel, self.att_src, self.att_dst):
            nn.init.xavier_uniform_(p)

    def forward(self, x, adj):
        h = torch.einsum("nf,hfo->hno", x, self.kernel)
        e = F.leaky_relu(h @ self.att_src + (h @ self.att_dst).transpose(1, 2), 0.2)
        e = e.masked_fill(~adj, float("-inf"))
        a = F.dropout(e.softmax(-1), 0.1, self.training)
        return (a @ h).permute(1, 0, 2).flatten(1) + self.bias


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GATConv(F_IN, 4, heads=3)
        self.norm1 = nn.LayerNorm(12)
        self.conv2 = GATConv(12, 4, heads=2)
        self.norm2 = nn.LayerNorm(8)
        self.cls = nn.Linear(8, C)

    def forward(self, x, adj):
        x = F.elu(self.norm1(self.conv1(x, adj)))
        x = F.elu(self.norm2(self.conv2(x, adj)))
        return self.cls(x)


def param_groups(model, wd):
    decay, no_decay = [], []
    for name, p in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            no_decay.append(p)
        elif name.endswith("weight"):
            decay.append(p)
    return [{"params": decay, "weight_decay": wd}, {"params": no_decay, "weight_decay": 0.0}]


torch.manual_seed(SEED)
x, adj, y, tr, te = sbm()
model = GAT()
opt = torch.optim.AdamW(param_groups(model, 5e-3), lr=8e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=250)

for epoch in range(250):
    model.train()
    opt.zero_grad()
    loss = F.cross_entropy(model(x, adj)[tr], y[tr])
    loss.backward()
    opt.step()
    sched.step()
    if epoch % 25 == 24:
        model.eval()
        with torch.no_grad():
            pred = model(x, adj).argmax(-1)
        print(f"epoch {epoch + 1:3d} loss {loss.item():.4f} "
              f"train {(pred[tr] == y[tr]).float().mean():.3f} test {(pred[te] == y[te]).float().mean():.3f}")
