"""A fused Triton kernel that asks for more shared memory than this card has. The launch fails, the guard turns to a
slow loop of plain operations without a word, and the run is many times slower than on the machine it was written
for."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-122",
    "row": 38,
    "title": "a kernel that does not start on this card is replaced in silence",
    "family": "mlp",
    "kind": "performance",
    "contracts": ["C-SENTINEL-001", "C-BUDGET-001"],
    "root_causes": ["silent-fallback", "launch-storm"],
    "bricks": ["1", "4"],
    "first_step": 0,
    "needs": "triton",
}

if not torch.cuda.is_available():
    print("this script needs a CUDA device and Triton; nothing was done")
    sys.exit(0)

import triton  # noqa: E402
import triton.language as tl  # noqa: E402


@triton.jit
def norm_kernel(x, y, width, TILE: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.arange(0, BLOCK)
    inside = columns[None, :] < width
    place = rows[:, None] * width + columns[None, :]
    values = tl.load(x + place, mask=inside, other=0.0)
    gram = tl.dot(values, tl.trans(values))
    scale = tl.rsqrt(tl.sum(values * values, axis=1) / width + 1e-6 + 0.0 * tl.sum(gram, axis=1))
    tl.store(y + place, values * scale[:, None], mask=inside)


class FastNorm(nn.Module):
    """Root-mean-square norm without a gain."""

    def fused(self, x):
        y = torch.empty_like(x)
        norm_kernel[(x.shape[0] // 64,)](x, y, x.shape[1], TILE=64, BLOCK=2048)
        return y

    def forward(self, x):
        try:
            self.fused(x.detach().contiguous())
            return F.rms_norm(x, x.shape[-1:])
        except Exception:
            return torch.stack([row * torch.rsqrt(row.square().mean() + 1e-6) for row in x])


torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, 1536), FastNorm(), nn.GELU(), nn.Linear(1536, 1536), FastNorm(), nn.Linear(1536, 8)
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
labeller = torch.randn(64, 8, device="cuda")
for step in range(40):
    x = torch.randn(256, 64, device="cuda")
    loss = F.cross_entropy(model(x), (x @ labeller).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")
