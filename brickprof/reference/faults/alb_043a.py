"""A Triton kernel that applies SiLU to the wide inner activations and stores them in a region of an arena made for
the narrow hidden ones. Every write beyond the region lands on whatever lies next: here the block's own weights."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-043a",
    "row": 3,
    "title": "a Triton kernel writes [S, I] elements into room for [S, H]",
    "family": "gpt",
    "kind": "numeric",
    "contracts": ["C-BUFSIZE-001"],
    "root_causes": ["buffer-overflow", "out-of-bounds"],
    "bricks": ["mlp", "mlp.up", "mlp.down"],
    "first_step": 0,
    "needs": "triton",
}

if not torch.cuda.is_available():
    print("this script needs a CUDA device and Triton; nothing was done")
    sys.exit(0)

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

ROWS, HIDDEN, INNER, VOCAB = 256, 64, 256, 48


@triton.jit
def silu_kernel(source, target, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    x = tl.load(source + offsets, mask=inside)
    tl.store(target + offsets, x / (1 + tl.exp(-x)), mask=inside)


class Arena:
    def __init__(self, numbers):
        self.memory = torch.zeros(numbers, device="cuda")
        self.used = 0

    def take(self, *shape):
        start = self.used
        self.used += torch.Size(shape).numel()
        return self.memory[start : self.used].view(shape)


class FusedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scratch):
        ctx.save_for_backward(x)
        silu_kernel[(triton.cdiv(x.numel(), 1024),)](x, scratch, x.numel(), BLOCK=1024)
        return F.silu(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * s * (1 + x * (1 - s)), None


class MLP(nn.Module):
    def __init__(self, arena):
        super().__init__()
        self.scratch = arena.take(ROWS, HIDDEN)
        self.up = nn.Linear(HIDDEN, INNER, device="cuda")
        self.down = nn.Linear(INNER, HIDDEN, device="cuda")
        for linear in (self.up, self.down):
            place = arena.take(*linear.weight.shape)
            place.copy_(linear.weight.detach())
            linear.weight.data = place

    def forward(self, x):
        return self.down(FusedSilu.apply(self.up(x).contiguous(), self.scratch))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN, device="cuda")
        self.norm = nn.LayerNorm(HIDDEN, device="cuda")
        self.mlp = MLP(Arena(ROWS * HIDDEN + 2 * HIDDEN * INNER + ROWS * INNER))
        self.head = nn.Linear(HIDDEN, VOCAB, device="cuda")

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.mlp(self.norm(x)))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(150):
    ids = torch.randint(VOCAB, (ROWS,), device="cuda")
    loss = F.cross_entropy(model(ids), (7 * ids + 1) % VOCAB)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0:
        print(f"step {step} loss {loss.item():.4f}")
