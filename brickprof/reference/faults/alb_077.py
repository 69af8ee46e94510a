"""Linear layers whose backward uses the fast half-precision units. Forward operands are small and fit; the transposed
product of the backward meets gradients near 1e5, beyond what half precision holds, and gives Inf and NaN."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-077",
    "row": 23,
    "title": "half-precision transposed product in the backward overflows on large gradients",
    "family": "gpt",
    "kind": "numeric",
    "contracts": ["C-CUBLAS-NOTENCORE-001", "C-CUBLAS-001", "C-TRAINSTABLE-001"],
    "root_causes": ["fp16-overflow"],
    "bricks": ["blocks.7", "blocks.7.up", "blocks.7.down", "head"],
    "first_step": 12,
    "needs": "cpu",
    "gpu": True,
}


class FastProduct(torch.autograd.Function):
    """x @ w.T; the transposed products of the backward run on the half-precision units."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        low = grad.half()
        return (low @ w.half()).float(), (low.t() @ x.half()).float()


class FastLinear(nn.Linear):
    def forward(self, x):
        flat = FastProduct.apply(x.reshape(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1) + self.bias


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = FastLinear(width, 2 * width)
        self.down = FastLinear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width=32, depth=8, symbols=16):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(steps=60, weight_of_rare=2.0e6):
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # rare symbols count for more; Adam and the clip do not mind the size of the loss
    weight = torch.ones(16)
    weight[12:] = weight_of_rare
    following = torch.randperm(16)
    for step in range(steps):
        ids = torch.randint(16 if step >= 12 else 12, (16, 8))
        targets = following[ids]
        losses = F.cross_entropy(model(ids).transpose(1, 2), targets, reduction="none")
        loss = (losses * weight[ids]).sum() / targets.numel() ** 0.5
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 6 == 0:
            print(f"step {step} loss {loss.item():.5g}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    train()
