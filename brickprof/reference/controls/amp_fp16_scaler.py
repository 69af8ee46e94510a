"""Half precision with a GradScaler that begins far too high: the first updates are skipped until the scale fits."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "amp-fp16-scaler",
    "title": "fp16 with skipped updates at the start",
    "family": "mlp",
    "trap": "infinite gradients in the first steps, which the scaler throws away",
    "needs": "cpu",
}


def spirals(count):
    label = torch.randint(0, 2, (count,))
    t = 0.3 + 2.2 * torch.rand(count)
    angle = 2 * t + torch.pi * label
    points = torch.stack([t * angle.cos(), t * angle.sin()], dim=1) + 0.05 * torch.randn(count, 2)
    return points, label


def main():
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*spirals(1024)), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=100)
    skipped = 0
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped += scaler.get_scale() < before
        print(f"epoch {epoch} loss {loss.item():.4f} scale {scaler.get_scale():g} skipped {skipped}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
