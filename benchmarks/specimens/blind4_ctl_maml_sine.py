import argparse
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

TRUTH = {
    "id": "blind4-ctl_maml_sine",
    "title": "Healthy second-order MAML on sine regression.",
    "family": "mlp",
    "needs": "cpu",
    "trap": "The loss is noisy since every step draws new tasks, inner-loop parameters are not owned by any optimizer, the model is called with substituted weights and gradients go through gradients.",
}


class SineNet(nn.Module):
    def __init__(self, w=40):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(1, w), nn.Linear(w, w), nn.Linear(w, 1)

    def forward(self, x):
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))


def task(gen, k):
    amp = 0.5 + 2.5 * torch.rand(1, generator=gen)
    ph = math.pi * torch.rand(1, generator=gen)
    x = 6 * torch.rand(2 * k, 1, generator=gen) - 3
    y = amp * torch.sin(x + ph)
    return x[:k], y[:k], x[k:], y[k:]


def adapt(net, params, x, y, lr, n, second_order):
    for _ in range(n):
        loss = F.mse_loss(functional_call(net, params, (x,)), y)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=second_order)
        params = {k: p - lr * g for (k, p), g in zip(params.items(), grads)}
    return params


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--meta-steps", type=int, default=220)
    p.add_argument("--tasks", type=int, default=6)
    p.add_argument("--shots", type=int, default=10)
    p.add_argument("--inner-lr", type=float, default=0.02)
    p.add_argument("--lr", type=float, default=3e-3)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(0)
    net = SineNet()
    opt = torch.optim.Adam(net.parameters(), lr=a.lr)
    avg = None
    for step in range(a.meta_steps):
        opt.zero_grad()
        meta = 0.0
        for _ in range(a.tasks):
            xs, ys, xq, yq = task(gen, a.shots)
            fast = adapt(net, dict(net.named_parameters()), xs, ys, a.inner_lr, 2, True)
            meta = meta + F.mse_loss(functional_call(net, fast, (xq,)), yq) / a.tasks
        meta.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        avg = meta.item() if avg is None else 0.95 * avg + 0.05 * meta.item()
        if step % 20 == 0 or step == a.meta_steps - 1:
            print(f"meta step {step} query mse {meta.item():.4f} smooth {avg:.4f}")


if __name__ == "__main__":
    main()
