import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind6-d03-relation-net",
    "row": None,
    "title": "parameter groups are built from ndim == 2 and ndim == 1, the 3-D relation weights are in no group",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-missing-parameters"],
    "bricks": ["convs.0", "convs.1"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

torch.manual_seed(0)
NODES, RELS, FEAT, HID, CLS = 3000, 4, 12, 16, 4


def build_graph():
    """Class of a node depends on the features of its neighbours, differently per relation."""
    x = torch.randn(NODES, FEAT)
    edges = []
    mix = torch.randn(RELS, FEAT, FEAT) / FEAT ** 0.5
    agg = torch.zeros(NODES, FEAT)
    for r in range(RELS):
        src = torch.randint(0, NODES, (NODES * 2,))
        dst = torch.arange(NODES).repeat(2)
        edges.append((src, dst))
        m = torch.zeros(NODES, FEAT).index_add_(0, dst, x[src]) / 2
        agg += m @ mix[r]
    y = (agg @ torch.randn(FEAT, CLS)).argmax(1)
    return x, edges, y


class RelConv(nn.Module):
    def __init__(self, d_in, d_out, rels):
        super().__init__()
        self.rel_weight = nn.Parameter(torch.empty(rels, d_in, d_out))
        for w in self.rel_weight:
            nn.init.xavier_uniform_(w)
        self.self_loop = nn.Linear(d_in, d_out)

    def forward(self, x, edges):
        out = self.self_loop(x)
        for r, (src, dst) in enumerate(edges):
            msg = x[src] @ self.rel_weight[r]
            out = out + torch.zeros_like(out).index_add_(0, dst, msg) / 2
        return out


class RGCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([RelConv(FEAT, HID, RELS), RelConv(HID, HID, RELS)])
        self.norm = nn.LayerNorm(HID)
        self.head = nn.Linear(HID, CLS)

    def forward(self, x, edges):
        h = torch.tanh(self.convs[0](x, edges))
        h = h + torch.tanh(self.convs[1](self.norm(h), edges))
        return self.head(h)


def param_groups(model, wd):
    decay, plain = [], []
    for name, p in model.named_parameters():
        if p.ndim == 2:
            decay.append(p)
        elif p.ndim == 1:
            plain.append(p)
    return [{"params": decay, "weight_decay": wd}, {"params": plain, "weight_decay": 0.0}]


x, edges, y = build_graph()
perm = torch.randperm(NODES)
tr, te = perm[:2400], perm[2400:]
net = RGCN()
opt = torch.optim.AdamW(param_groups(net, 1e-2), lr=1e-2)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=180)

for epoch in range(180):
    net.train()
    pick = tr[torch.randperm(len(tr))[:800]]
    loss = F.cross_entropy(net(x, edges)[pick], y[pick])
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    if epoch % 20 == 0 or epoch == 179:
        net.eval()
        with torch.no_grad():
            p = net(x, edges).argmax(1)
        print(f"[{epoch:03d}] loss={loss.item():.4f} train={(p[tr] == y[tr]).float().mean():.3f} "
              f"test={(p[te] == y[te]).float().mean():.3f}")
