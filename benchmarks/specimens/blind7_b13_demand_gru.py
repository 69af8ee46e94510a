"""Probabilistic demand forecast, GRU with mean and variance heads."""
TRUTH = {
    "id": "blind7-b13-demand-gru",
    "row": None,
    "title": "gaussian_nll_loss is called as (mean, var, target) instead of (mean, target, var): the predicted variance plays the target and the demand plays the variance",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["argument-order-swapped", "loss-input-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}
import torch
import torch.nn as nn
import torch.nn.functional as F

HIST = 21


def shops(n, gen):
    t = torch.arange(HIST + 1).float()
    level = 2 + 2 * torch.rand(n, 1, generator=gen)
    week = 1.2 * torch.sin(2 * torch.pi * t / 7 + 6.283 * torch.rand(n, 1, generator=gen))
    trend = 0.03 * torch.randn(n, 1, generator=gen) * t
    noise = (0.05 + 0.15 * torch.rand(n, 1, generator=gen)) * torch.randn(n, HIST + 1, generator=gen)
    return (level + week + trend + noise).clamp_min(0.05)


class DemandNet(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, num_layers=1, batch_first=True)
        self.mean = nn.Linear(hidden, 1)
        self.raw_var = nn.Linear(hidden, 1)

    def forward(self, x):
        h, _ = self.rnn(x.unsqueeze(-1) - 3.0)
        h = h[:, -1]
        return self.mean(h).squeeze(-1) + 3.0, F.softplus(self.raw_var(h)).squeeze(-1) + 1e-3


def mae(model, series):
    model.eval()
    with torch.no_grad():
        mu, _ = model(series[:, :-1])
    model.train()
    return (mu - series[:, -1]).abs().mean().item()


gen = torch.Generator().manual_seed(40)
torch.manual_seed(41)
model = DemandNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=240)
holdout = shops(256, torch.Generator().manual_seed(42))
for it in range(240):
    s = shops(48, gen)
    mu, var = model(s[:, :-1])
    loss = F.gaussian_nll_loss(mu, var, s[:, -1])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    scheduler.step()
    if it % 40 == 39:
        print(f"it {it + 1} nll {loss.item():.4f} holdout MAE {mae(model, holdout):.3f}")
