import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind4-mixerload",
    "title": "Every linear layer of a deep mixer is initialised with unit-variance normal weights, so activations, first loss and gradients are huge.",
    "family": "mlp",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["bad-initialisation"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

torch.set_num_threads(1)
torch.manual_seed(314)


class MixerBlock(nn.Module):
    def __init__(self, steps, chans, mult=2):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(steps, mult * steps), nn.ReLU(), nn.Linear(mult * steps, steps))
        self.chan = nn.Sequential(nn.Linear(chans, mult * chans), nn.ReLU(), nn.Linear(mult * chans, chans))

    def forward(self, x):
        x = x + self.time(x.transpose(1, 2)).transpose(1, 2)
        return x + self.chan(x)


class TSMixer(nn.Module):
    def __init__(self, lookback=48, chans=8, horizon=12, depth=3):
        super().__init__()
        self.blocks = nn.Sequential(*[MixerBlock(lookback, chans) for _ in range(depth)])
        self.readout = nn.Linear(lookback, horizon)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight)
            nn.init.zeros_(m.bias)

    def forward(self, x):
        return self.readout(self.blocks(x).transpose(1, 2)).transpose(1, 2)


def load_curves(n, lookback=48, horizon=12, chans=8):
    t = torch.arange(lookback + horizon).float()
    day = torch.rand(n, 1, chans) * 6.28
    amp = 0.5 + torch.rand(n, 1, chans)
    s = amp * torch.sin(2 * torch.pi * t[None, :, None] / 24 + day)
    s = s + 0.3 * torch.sin(2 * torch.pi * t[None, :, None] / 12) + 0.1 * torch.randn(n, lookback + horizon, chans)
    return s[:, :lookback], s[:, lookback:]


train = DataLoader(TensorDataset(*load_curves(2048)), batch_size=64, shuffle=True)
vx, vy = load_curves(256)
net = TSMixer()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
crit = nn.MSELoss()
for epoch in range(5):
    net.train()
    seen = 0.0
    for x, y in train:
        opt.zero_grad()
        loss = crit(net(x), y)
        loss.backward()
        opt.step()
        seen += loss.item() / len(train)
    net.eval()
    with torch.no_grad():
        v = crit(net(vx), vy).item()
    print(f"epoch {epoch:2d}  train mse {seen:.4g}  val mse {v:.4g}")
