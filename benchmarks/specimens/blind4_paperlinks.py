from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-paperlinks",
    "title": "The node loss is averaged over the labelled nodes of a sampled subgraph and some subgraph has no labelled node, so the mean is 0/0.",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["division-by-zero"],
    "bricks": [],
    "first_step": 283,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    nodes: int = 3000
    classes: int = 5
    feat: int = 48
    hidden: int = 96
    sub: int = 48
    label_rate: float = 0.12
    steps: int = 340
    lr: float = 3e-3


class Graph:
    def __init__(self, cfg, gen):
        self.y = torch.randint(0, cfg.classes, (cfg.nodes,), generator=gen)
        centers = torch.randn(cfg.classes, cfg.feat, generator=gen)
        self.x = 0.5 * centers[self.y] + torch.randn(cfg.nodes, cfg.feat, generator=gen)
        self.labelled = torch.rand(cfg.nodes, generator=gen) < cfg.label_rate
        self.gen = gen

    def subgraph(self, k):
        idx = torch.randperm(len(self.y), generator=self.gen)[:k]
        y = self.y[idx]
        same = (y[:, None] == y[None, :]).float()
        p = 0.25 * same + 0.02 * (1 - same)
        adj = (torch.rand(k, k, generator=self.gen) < p).float().triu(1)
        adj = adj + adj.T + torch.eye(k)
        return self.x[idx], adj, y, self.labelled[idx].float()


class SageLayer(nn.Module):
    def __init__(self, din, dout):
        super().__init__()
        self.self_lin = nn.Linear(din, dout)
        self.nbr_lin = nn.Linear(din, dout, bias=False)
        self.norm = nn.LayerNorm(dout)

    def forward(self, x, adj):
        nbr = adj @ x / adj.sum(1, keepdim=True)
        return F.gelu(self.norm(self.self_lin(x) + self.nbr_lin(nbr)))


class NodeNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.l1 = SageLayer(cfg.feat, cfg.hidden)
        self.l2 = SageLayer(cfg.hidden, cfg.hidden)
        self.l3 = SageLayer(cfg.hidden, cfg.hidden)
        self.cls = nn.Linear(cfg.hidden, cfg.classes)

    def forward(self, x, adj):
        h = self.l1(x, adj)
        h = h + self.l2(h, adj)
        h = h + self.l3(h, adj)
        return self.cls(h)


class Runner:
    def __init__(self, cfg):
        self.cfg = cfg
        gen = torch.Generator().manual_seed(23)
        self.graph = Graph(cfg, gen)
        self.model = NodeNet(cfg)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=1e-3)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, cfg.steps)

    def step(self):
        x, adj, y, mask = self.graph.subgraph(self.cfg.sub)
        ce = F.cross_entropy(self.model(x, adj), y, reduction="none")
        loss = (ce * mask).sum() / mask.sum()
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.sched.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        x, adj, y, mask = self.graph.subgraph(400)
        acc = (self.model(x, adj).argmax(1) == y).float().mean().item()
        self.model.train()
        return acc

    def fit(self):
        for s in range(self.cfg.steps):
            loss = self.step()
            if s % 25 == 0:
                print(f"{s:4d} loss={loss:.4f} acc={self.evaluate():.3f}")
        print("final acc", self.evaluate())


torch.set_num_threads(1)
torch.manual_seed(3)
Runner(Config()).fit()
