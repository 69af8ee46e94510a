"""A small mixer of patches in bfloat16 autocast, without a scaler, which bfloat16 does not need."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "bf16-autocast",
    "title": "bfloat16 autocast without a scaler",
    "family": "other",
    "trap": "rounding of bfloat16 makes losses and gradients coarse",
    "needs": "cpu",
}


class Mixer(nn.Module):
    def __init__(self, patches=8, width=24, depth=2, classes=4):
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.across = nn.ModuleList(nn.Linear(patches, patches) for _ in range(depth))
        self.within = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)) for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.embed(x)
        for i, (across, within) in enumerate(zip(self.across, self.within, strict=True)):
            x = x + across(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + within(self.norms[2 * i + 1](x))
        return self.head(x.mean(1))


SIGNS = torch.randn(4, 8, 6, generator=torch.Generator().manual_seed(7))


def batch(size):
    label = torch.randint(0, 4, (size,))
    return 0.6 * SIGNS[label] + torch.randn(size, 8, 6), label


torch.set_num_threads(1)
torch.manual_seed(0)
model = Mixer()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.01)
for step in range(100):
    x, y = batch(48)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x)
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
