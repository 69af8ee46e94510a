"""An eight-block encoder whose skip connections are detached "to save memory". The gradient reaches the lower blocks
only through the branches, and fades on the way."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-residual-path-broken-transformer",
    "row": None,
    "title": "the skip of every block is detached",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-RESIDUAL-001", "C-GRADFLOW-001"],
    "root_causes": ["residual-path-broken", "no-gradient-path"],
    "bricks": ["blocks.0", "blocks.1", "blocks.2", "blocks.3", "embed"],
    "first_step": 0,
    "needs": "cpu",
}


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.heads = heads
        nn.init.normal_(self.proj.weight, std=0.02)
        nn.init.normal_(self.ffn[2].weight, std=0.02)

    def attend(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        out = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(b, t, d))

    def forward(self, x):
        x = x.detach() + self.attend(self.ln1(x))
        return x.detach() + self.ffn(self.ln2(x))


class Classifier(nn.Module):
    def __init__(self, vocab=20, dim=32, depth=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.randn(16, dim) * 0.1)
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 2)

    def forward(self, ids):
        x = self.embed(ids) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def train_step(model, optimizer):
    ids = torch.randint(0, 20, (16, 16))
    labels = ((ids < 5).sum(1) > 4).long()
    loss = nn.functional.cross_entropy(model(ids), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(90):
        loss = train_step(model, optimizer)
        if step % 15 == 0:
            norms = [f"{b.qkv.weight.grad.norm():.0e}" for b in model.blocks]
            print(step, f"{loss.item():.3f}", " ".join(norms))
