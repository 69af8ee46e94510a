import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-triplet-margin",
    "title": "metric learning with a hinge on random triplets and early stopping once recall no longer improves",
    "family": "mlp",
    "needs": "cpu",
    "trap": "late batches often have a loss of exactly 0.0 and zero gradients, because all triplets already satisfy the margin; the run stops early",
}

torch.manual_seed(8)
torch.set_num_threads(1)

CLASSES, DIM = 15, 32
_g = torch.Generator().manual_seed(80)
_centres = torch.randn(CLASSES, 6, generator=_g) * 1.6
_lift = torch.randn(6, DIM, generator=_g)


def observations(per_class, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(CLASSES).repeat_interleave(per_class)
    z = _centres[y] + 0.45 * torch.randn(len(y), 6, generator=g)
    return torch.sin(z @ _lift * 0.5) + 0.1 * torch.randn(len(y), DIM, generator=g), y


class Embedder(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(DIM, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 16))


def triplets(y, n, gen):
    anchor = torch.randint(0, len(y), (n,), generator=gen)
    per = len(y) // CLASSES
    positive = y[anchor] * per + torch.randint(0, per, (n,), generator=gen)
    other = (y[anchor] + torch.randint(1, CLASSES, (n,), generator=gen)) % CLASSES
    negative = other * per + torch.randint(0, per, (n,), generator=gen)
    return anchor, positive, negative


@torch.no_grad()
def recall_at_1(net, x, y):
    net.eval()
    e = F.normalize(net(x), dim=1)
    sim = e @ e.t()
    sim.fill_diagonal_(-2)
    net.train()
    return (y[sim.argmax(1)] == y).float().mean().item()


def main(max_epochs=12, steps_per_epoch=40, patience=4):
    x, y = observations(60, 1)
    xv, yv = observations(30, 2)
    gen = torch.Generator().manual_seed(3)
    net = Embedder()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    best, since, kept = 0.0, 0, None
    for epoch in range(max_epochs):
        total, empty = 0.0, 0
        for _ in range(steps_per_epoch):
            a, p, n = triplets(y, 32, gen)
            e = F.normalize(net(x), dim=1)
            loss = F.relu((e[a] - e[p]).pow(2).sum(1) - (e[a] - e[n]).pow(2).sum(1) + 0.2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
            empty += loss.item() == 0.0
        r = recall_at_1(net, xv, yv)
        print(f"epoch {epoch} loss {total / steps_per_epoch:.5f} empty batches {empty} recall@1 {r:.3f}")
        if r > best:
            best, since, kept = r, 0, {k: v.clone() for k, v in net.state_dict().items()}
        else:
            since += 1
            if since >= patience:
                break
    net.load_state_dict(kept)
    print(f"kept the model with recall {best:.3f}")


if __name__ == "__main__":
    main()
