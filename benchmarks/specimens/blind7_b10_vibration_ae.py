"""Denoising autoencoder for vibration windows of a test rig."""
TRUTH = {
    "id": "blind7-b10-vibration-ae",
    "row": None,
    "title": "a handful of windows were logged in raw ADC counts (x400) and were never converted; each batch that holds one makes the loss spike",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["loss-spike-data"],
    "bricks": [],
    "first_step": 21,
    "needs": "cpu",
    "crashes": False,
}
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

WIN = 64


def read_rig(n_windows, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(WIN) / WIN
    rpm = 2 + 6 * torch.rand(n_windows, 1, generator=g)
    ph = 6.283 * torch.rand(n_windows, 2, generator=g)
    amp = 0.5 + torch.rand(n_windows, 2, generator=g)
    volts = amp[:, :1] * torch.sin(6.283 * rpm * t + ph[:, :1]) + 0.4 * amp[:, 1:] * torch.sin(12.566 * rpm * t + ph[:, 1:])
    volts = volts + 0.05 * torch.randn(n_windows, WIN, generator=g)
    tripped = torch.randperm(n_windows, generator=g)[:3]
    volts[tripped] = volts[tripped] * 400.0
    return volts


class AE(nn.Module):
    def __init__(self, z=10):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIN, 128), nn.SiLU(), nn.Linear(128, z))
        self.decoder = nn.Sequential(nn.Linear(z, 128), nn.SiLU(), nn.Linear(128, WIN))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def run():
    torch.manual_seed(30)
    data = TensorDataset(read_rig(4096, 31))
    train, val = random_split(data, [3584, 512], generator=torch.Generator().manual_seed(32))
    loader = DataLoader(train, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(33))
    vloader = DataLoader(val, batch_size=128)
    model = AE()
    opt = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    step = 0
    for epoch in range(5):
        model.train()
        tot = []
        for (x,) in loader:
            noisy = x + 0.1 * torch.randn_like(x)
            loss = nn.functional.mse_loss(model(noisy), x)
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot.append(loss.item())
            if step % 20 == 0:
                print(f"  step {step} mse {loss.item():.4f}")
            step += 1
        model.eval()
        with torch.no_grad():
            v = [nn.functional.mse_loss(model(x), x).item() for (x,) in vloader]
        tot = torch.tensor(tot)
        print(f"epoch {epoch}: median {tot.median():.4f} max {tot.max():.1f} val {min(v):.4f}..{max(v):.4f}")


run()
