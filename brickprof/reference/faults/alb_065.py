"""Gradient norms are computed on a side stream and copied to pinned memory without waiting. The host reads them at
once and scales the gradients by whatever was there before: old numbers, zeros, NaN."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-065",
    "row": 13,
    "title": "pinned memory is read before the copy from a side stream is done",
    "family": "mlp",
    "kind": "numeric",
    "contracts": ["C-STREAMSYNC-001"],
    "root_causes": ["missing-sync", "stream-race"],
    "bricks": [],
    "first_step": 0,
    "needs": "gpu",
    "run": ["--sync-check"],
}

if not torch.cuda.is_available():
    print("this script needs a CUDA device; nothing was done")
    sys.exit(0)


class AsyncClip:
    """Keeps the main stream free: the norm is computed elsewhere."""

    def __init__(self, limit):
        self.limit = limit
        self.stream = torch.cuda.Stream()
        self.host = torch.empty(1, pin_memory=True)

    def __call__(self, parameters):
        gradients = [p.grad for p in parameters]
        with torch.cuda.stream(self.stream):
            total = torch.nn.utils.get_total_norm(gradients)
            self.host.copy_(total.view(1), non_blocking=True)
        norm = float(self.host.numpy()[0])
        torch._foreach_mul_(gradients, min(1.0, self.limit / (norm + 1e-12)))
        return norm


torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(256, 2048),
    nn.GELU(),
    nn.Linear(2048, 2048),
    nn.GELU(),
    nn.Linear(2048, 2048),
    nn.GELU(),
    nn.Linear(2048, 10),
).cuda()
clip = AsyncClip(1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
labeller = torch.randn(256, 10, device="cuda")
for step in range(200):
    x = torch.randn(512, 256, device="cuda")
    loss = F.cross_entropy(model(x), (x @ labeller).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    norm = clip(model.parameters())
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f} norm {norm:.3e}")
