"""A norm that is launched once for every row. Each launch is small and quick, and there are a thousand of them in
every layer: nearly the whole step goes into starting them."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-076",
    "row": 22,
    "title": "RMSNorm in a Python loop over rows",
    "family": "gpt",
    "kind": "performance",
    "contracts": ["C-BUDGET-001", "C-GPUTRAIN-002"],
    "root_causes": ["launch-storm"],
    "bricks": ["blocks.0.norm", "blocks.1.norm", "norm"],
    "first_step": 0,
    "needs": "cpu",
    "gpu": True,
}

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)
torch.manual_seed(5)
B, T, C, V = 8, 16, 64, 40


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def row(self, x):
        return x * torch.rsqrt(torch.mean(x * x) + 1e-6) * self.gamma

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        return torch.stack([self.row(rows[i]) for i in range(rows.shape[0])]).view(x.shape)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RMSNorm(C)
        self.qkv = nn.Linear(C, 3 * C, bias=False)
        self.mlp = nn.Sequential(nn.Linear(C, 4 * C), nn.SiLU(), nn.Linear(4 * C, C))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, C)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = RMSNorm(C)
        self.head = nn.Linear(C, V)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(40):
    line = (torch.randint(V, (B, 1)) + 3 * torch.arange(T + 1)) % V
    line = line.to(device)
    loss = F.cross_entropy(model(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")
