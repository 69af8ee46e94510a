# claims_cost.ipynb -> script
# %%
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind6-e05-claims-cost",
    "row": None,
    "title": "Tweedie deviance takes a fractional power of an unconstrained linear output; NaN once a prediction is negative",
    "family": "mlp",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["invalid-op"],
    "bricks": [],
    "first_step": 125,
    "needs": "cpu",
    "crashes": False,
}

torch.manual_seed(7)

# %% data: policies with region, vehicle class, age; most have no claim at all
N = 6000
region = torch.randint(0, 20, (N,))
vehicle = torch.randint(0, 12, (N,))
num = torch.randn(N, 5)
reg_eff = 0.5 * torch.randn(20)
veh_eff = 0.5 * torch.randn(12)
w = torch.tensor([0.5, -0.4, 0.3, 0.0, 0.0])
rate = torch.exp(-0.3 + reg_eff[region] + veh_eff[vehicle] + num @ w)
count = torch.poisson(rate)
cost = torch.where(count > 0, torch.distributions.Gamma(count.clamp(min=1) * 2.0, 2.0).sample(), torch.zeros(N))
print("share of zero claims", (cost == 0).float().mean().item(), "mean", cost.mean().item())

train = TensorDataset(region[:5000], vehicle[:5000], num[:5000], cost[:5000])
test = [t[5000:] for t in (region, vehicle, num, cost)]
loader = DataLoader(train, batch_size=100, shuffle=True)


# %% model
class CostNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.region = nn.Embedding(20, 6)
        self.vehicle = nn.Embedding(12, 6)
        self.body = nn.Sequential(nn.Linear(17, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.cost = nn.Linear(48, 1)
        nn.init.normal_(self.region.weight, std=0.05)
        nn.init.normal_(self.vehicle.weight, std=0.05)
        nn.init.normal_(self.cost.weight, std=0.02)
        nn.init.constant_(self.cost.bias, 1.2)

    def forward(self, r, v, x):
        h = torch.cat([self.region(r), self.vehicle(v), x], 1)
        return self.cost(self.body(h)).squeeze(1)


def tweedie(mu, y, power=1.5):
    a = y * mu.pow(1 - power) / (1 - power)
    b = mu.pow(2 - power) / (2 - power)
    return (b - a).mean()


# %% train
net = CostNet()
opt = torch.optim.Adam(net.parameters(), lr=4e-4)
history = []
for epoch in range(8):
    net.train()
    for r, v, x, y in loader:
        loss = tweedie(net(r, v, x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
    net.eval()
    with torch.no_grad():
        pred = net(*test[:3])
        print(f"epoch {epoch} train {sum(history[-50:]) / 50:.4f} test {tweedie(pred, test[3]).item():.4f} "
              f"mae {(pred - test[3]).abs().mean().item():.3f}")

# %%
print("first / last:", history[0], history[-1])
