import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-tides",
    "title": "AdamW gets weight_decay=30, so each step shrinks every weight by about 12 percent, the weights collapse and the forecast stays near the mean.",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["weight-decay-too-strong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

HPARAMS = dict(hidden=48, window=36, batch=32, iters=260, lr=4e-3, weight_decay=30.0, betas=(0.9, 0.999))


class TideNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.LSTM(2, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x):
        o, _ = self.rnn(x)
        return self.head(o[:, -1]).squeeze(-1)


def tide_series(n):
    t = torch.arange(n).float()
    level = torch.sin(2 * torch.pi * t / 12.4) + 0.5 * torch.sin(2 * torch.pi * t / 24.0 + 1.0)
    wind = torch.cumsum(torch.randn(n) * 0.05, 0)
    wind = wind - wind.mean()
    level = level + 0.3 * wind.clamp(-1, 1) + 0.05 * torch.randn(n)
    s = torch.stack([level, wind], 1)
    return (s - s.mean(0)) / s.std(0)


def windows(series, idx, w):
    x = torch.stack([series[i:i + w] for i in idx])
    y = torch.stack([series[i + w, 0] for i in idx])
    return x, y


torch.set_num_threads(1)
torch.manual_seed(55)
series = tide_series(4000)
cut = 3400
net = TideNet(HPARAMS["hidden"])
opt = torch.optim.AdamW(net.parameters(), lr=HPARAMS["lr"], betas=HPARAMS["betas"], weight_decay=HPARAMS["weight_decay"])
sched = torch.optim.lr_scheduler.MultiStepLR(opt, [180, 230], gamma=0.5)
vx, vy = windows(series, range(cut, 4000 - HPARAMS["window"] - 1, 7), HPARAMS["window"])
for it in range(HPARAMS["iters"]):
    idx = torch.randint(0, cut - HPARAMS["window"] - 1, (HPARAMS["batch"],)).tolist()
    x, y = windows(series, idx, HPARAMS["window"])
    loss = F.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    if it % 20 == 0:
        net.eval()
        with torch.no_grad():
            v = F.mse_loss(net(vx), vy).item()
        net.train()
        print(f"it {it:3d} train {loss.item():.4f} val {v:.4f}")
