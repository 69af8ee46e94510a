import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-event_recurrence",
    "title": "A hand-written recurrent cell adds an unbounded relu update to its state at every one of many time steps, so the gradient grows by a factor per time step and nothing bounds it.",
    "family": "lstm",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["exploding-gradients"],
    "bricks": ["encoder", "encoder.cell"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class AccumCell(nn.Module):
    """State carries evidence forward; the candidate is added to it."""

    def __init__(self, d_in, d_hidden):
        super().__init__()
        self.w_x = nn.Linear(d_in, d_hidden)
        self.w_h = nn.Linear(d_hidden, d_hidden, bias=False)

    def forward(self, x, h):
        return h + F.relu(self.w_x(x) + self.w_h(h))


class EventEncoder(nn.Module):
    def __init__(self, n_types, d, hidden):
        super().__init__()
        self.types = nn.Embedding(n_types, d)
        self.gap = nn.Linear(1, d)
        self.cell = AccumCell(d, hidden)
        self.hidden = hidden

    def forward(self, ids, dt):
        x = self.types(ids) + self.gap(dt[..., None])
        h = x.new_zeros(len(x), self.hidden)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return h


class ChurnModel(nn.Module):
    def __init__(self, n_types, d=24, hidden=40):
        super().__init__()
        self.encoder = EventEncoder(n_types, d, hidden)
        self.head = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids, dt):
        return self.head(self.encoder(ids, dt)).squeeze(-1)


def events(n, length, n_types, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, n_types, size=(n, length))
    dt = rng.exponential(0.5, size=(n, length)).astype(np.float32)
    w = rng.normal(size=n_types)
    score = (w[ids] * np.exp(-0.02 * np.arange(length)[::-1])).sum(1)
    return torch.from_numpy(ids), torch.from_numpy(dt), torch.from_numpy((score > 0).astype(np.float32))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--length", type=int, default=24)
    p.add_argument("--types", type=int, default=20)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--lr", type=float, default=0.005)
    p.add_argument("--momentum", type=float, default=0.9)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    ids, dt, y = events(3000, a.length, a.types, a.seed)
    model = ChurnModel(a.types)
    opt = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=a.momentum)
    g = torch.Generator().manual_seed(a.seed)
    for step in range(a.steps):
        i = torch.randint(0, 2600, (a.batch,), generator=g)
        loss = F.binary_cross_entropy_with_logits(model(ids[i], dt[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            gn = torch.stack([q.grad.norm() for q in model.parameters()]).norm()
            print(f"step {step} bce {loss.item():.4f} gnorm {gn.item():.3e}")
    with torch.no_grad():
        acc = ((model(ids[2600:], dt[2600:]) > 0).float() == y[2600:]).float().mean()
    print("holdout accuracy", acc.item())


if __name__ == "__main__":
    main()
