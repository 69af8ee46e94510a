"""Matrix factorisation trained in time-limited legs, as on a preemptible queue."""

import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-ratings-preempt",
    "row": None,
    "title": "each leg restores model, optimizer, scheduler and step, but rebuilds the seeded loader from its first batch",
    "family": "other",
    "kind": "process",
    "contracts": [],
    "root_causes": ["data-order-lost-on-resume"],
    "bricks": [],
    "first_step": 130,
    "needs": "cpu",
    "crashes": False,
}

USERS, ITEMS, RANK = 400, 300, 4
TOTAL_STEPS, LEG_STEPS, BATCH = 390, 130, 96
CKPT = "b12_ratings_ckpt.pt"


def ratings(n, seed):
    w = torch.Generator().manual_seed(123)
    p, q = torch.randn(USERS, RANK, generator=w), torch.randn(ITEMS, RANK, generator=w)
    bu, bi = 0.5 * torch.randn(USERS, generator=w), 0.5 * torch.randn(ITEMS, generator=w)
    g = torch.Generator().manual_seed(seed)
    u = torch.randint(0, USERS, (n,), generator=g)
    i = torch.randint(0, ITEMS, (n,), generator=g)
    r = (p[u] * q[i]).sum(-1) / RANK**0.5 + bu[u] + bi[i] + 0.2 * torch.randn(n, generator=g)
    return u, i, r


class MatrixFactorization(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.user = nn.Embedding(USERS, dim)
        self.item = nn.Embedding(ITEMS, dim)
        self.user_bias = nn.Embedding(USERS, 1)
        self.item_bias = nn.Embedding(ITEMS, 1)
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.3)
        for e in (self.user_bias, self.item_bias):
            nn.init.zeros_(e.weight)

    def forward(self, u, i):
        dot = (self.user(u) * self.item(i)).sum(-1)
        return dot + self.user_bias(u).squeeze(-1) + self.item_bias(i).squeeze(-1)


def run_leg(train_set, test):
    torch.manual_seed(17)
    model = MatrixFactorization()
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-2, total_steps=TOTAL_STEPS, pct_start=0.1)
    step = 0
    if os.path.exists(CKPT):
        state = torch.load(CKPT)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        sched.load_state_dict(state["sched"])
        step = state["step"]
        print(f"resumed at step {step}")
    loader = DataLoader(
        train_set, batch_size=BATCH, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(2024)
    )
    stop = min(step + LEG_STEPS, TOTAL_STEPS)
    while step < stop:
        for u, i, r in loader:
            loss = nn.functional.mse_loss(model(u, i), r)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % 26 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if step == stop:
                break
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "step": step}, CKPT)
    model.eval()
    with torch.no_grad():
        u, i, r = test
        print(f"step {step} test mse {nn.functional.mse_loss(model(u, i), r).item():.4f}")
    return step


def main():
    if os.path.exists(CKPT):
        os.remove(CKPT)
    train_set = TensorDataset(*ratings(TOTAL_STEPS * BATCH, 1))
    test = ratings(4000, 2)
    while run_leg(train_set, test) < TOTAL_STEPS:
        print("-- time limit reached, requeued --")
    os.remove(CKPT)


if __name__ == "__main__":
    main()
