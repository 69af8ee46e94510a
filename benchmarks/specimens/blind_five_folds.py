"""Five-fold cross-validation of a small regression network."""

import numpy as np
import torch
import torch.nn as nn

TRUTH = {
    "id": "blind-five-folds",
    "title": "k-fold loop: five small models one after the other, each with its own optimizer and schedule",
    "family": "mlp",
    "needs": "cpu",
    "trap": "loss jumps back up at each fold, new model and new optimizer mid-process, lr restarts, the same samples return in other folds",
}


def dataset(n=1500):
    r = np.random.default_rng(0)
    x = r.uniform(-2, 2, size=(n, 6)).astype(np.float32)
    y = np.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] ** 2 - x[:, 2] * x[:, 3] + 0.1 * r.normal(size=n)
    return x, ((y - y.mean()) / y.std()).astype(np.float32)


def folds(n, k, seed=0):
    idx = np.random.default_rng(seed).permutation(n)
    parts = np.array_split(idx, k)
    for i in range(k):
        yield np.concatenate([p for j, p in enumerate(parts) if j != i]), parts[i]


def fit_fold(xtr, ytr, xva, yva, seed, epochs=5, batch=60):
    torch.manual_seed(seed)
    mu, sd = xtr.mean(0), xtr.std(0)
    xtr, xva = (xtr - mu) / sd, (xva - mu) / sd
    net = nn.Sequential(nn.Linear(6, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=1e-3)
    per = (len(xtr) + batch - 1) // batch
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * per)
    for ep in range(epochs):
        net.train()
        for sel in torch.randperm(len(xtr)).split(batch):
            loss = nn.functional.mse_loss(net(xtr[sel]).squeeze(1), ytr[sel])
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
    net.eval()
    with torch.no_grad():
        return (
            nn.functional.mse_loss(net(xtr).squeeze(1), ytr).item(),
            nn.functional.mse_loss(net(xva).squeeze(1), yva).item(),
        )


def main():
    x, y = dataset()
    scores = []
    for f, (tr, va) in enumerate(folds(len(x), 5)):
        t = lambda a: torch.from_numpy(a)
        a, b = fit_fold(t(x[tr]), t(y[tr]), t(x[va]), t(y[va]), seed=f)
        scores.append(b)
        print(f"fold {f}: train mse {a:.4f} val mse {b:.4f}")
    print(f"cv mse {np.mean(scores):.4f} +- {np.std(scores):.4f}")


main()
