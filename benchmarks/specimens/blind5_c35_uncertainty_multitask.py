import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind5-c35-uncertainty-multitask", "title": "two regressions and a classification weighted by learned variances, sparse embeddings with SparseAdam",
           "family": "mlp", "needs": "cpu", "trap": "total loss goes negative, sparse gradients, two optimizers, most embedding rows untouched in a step"}

torch.manual_seed(40)
ITEMS, D = 2000, 16
latent = torch.randn(ITEMS, 4)
W = torch.randn(4 + 6, 3)


def batch(n=128):
    i = torch.randint(0, ITEMS, (n,))
    c = torch.randn(n, 6)
    z = torch.cat([latent[i], c], 1) @ W / 3
    price = z[:, 0] + 0.05 * torch.randn(n)
    weight = torch.tanh(z[:, 1]) + 0.05 * torch.randn(n)
    return i, c, price, weight, (z[:, 2] > 0).long()


class Multi(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS, D, sparse=True)
        self.trunk = nn.Sequential(nn.Linear(D + 6, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU())
        self.heads = nn.ModuleDict({"price": nn.Linear(96, 1), "weight": nn.Linear(96, 1), "stock": nn.Linear(96, 2)})
        self.log_var = nn.ParameterDict({k: nn.Parameter(torch.zeros(())) for k in self.heads})

    def forward(self, i, c):
        h = self.trunk(torch.cat([self.item(i), c], 1))
        return {k: head(h).squeeze(-1) for k, head in self.heads.items()}


def losses(out, price, weight, stock):
    return {"price": F.mse_loss(out["price"], price), "weight": F.mse_loss(out["weight"], weight), "stock": F.cross_entropy(out["stock"], stock)}


net = Multi()
dense = [p for n, p in net.named_parameters() if n != "item.weight"]
opts = [torch.optim.SparseAdam([net.item.weight], lr=2e-2), torch.optim.Adam(dense, lr=2e-3)]
STEPS = 500
scheds = [torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.02, total_iters=STEPS) for o in opts]

for step in range(STEPS):
    i, c, *targets = batch()
    parts = losses(net(i, c), *targets)
    total = sum(torch.exp(-net.log_var[k]) * v + net.log_var[k] for k, v in parts.items())
    for o in opts:
        o.zero_grad()
    total.backward()
    for o in opts:
        o.step()
    for s in scheds:
        s.step()
    if step % 50 == 0 or step == STEPS - 1:
        net.eval()
        with torch.no_grad():
            i, c, *targets = batch(1000)
            out = net(i, c)
            ev = {k: round(v.item(), 4) for k, v in losses(out, *targets).items()}
            a = (out["stock"].argmax(1) == targets[2]).float().mean().item()
        net.train()
        print(f"{step:4d} total {total.item():+.3f} eval {ev} acc {a:.3f} logvar { {k: round(v.item(), 2) for k, v in net.log_var.items()} }")
