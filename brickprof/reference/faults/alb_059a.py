"""Weight gradients are written into one arena that also holds Adam's moments. The layout of the output is given as
(k, n) where (n, k) is expected, so the rows land far apart, and some land in the second moments: v goes negative, its
root is NaN."""

import math

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-059a",
    "row": 9,
    "title": "rows and columns swapped in a product's output: it writes into Adam's second moments",
    "family": "mlp",
    "kind": "numeric",
    "contracts": ["C-GEMMARGS-001", "C-BUFSIZE-001", "C-TRAINSTABLE-001"],
    "root_causes": ["argument-order-swapped", "buffer-overflow"],
    "bricks": ["wide"],
    "first_step": 0,
    "needs": "cpu",
    "gpu": True,
}

IN, WIDE, OUT = 8, 64, 4
ARENA = torch.zeros(2 * IN * WIDE + 3 * WIDE * OUT + 8192)


class Product:
    """c = a.T @ b, stored row by row at an offset of the arena."""

    def __init__(self, m, n, k, offset=0):
        self.m, self.n, self.k, self.offset = m, n, k, offset

    def __call__(self, a, b):
        c = torch.as_strided(ARENA, (self.m, b.shape[1]), (self.n, 1), self.offset)
        c.copy_(a.t() @ b)
        return c


class FastLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, product):
        ctx.save_for_backward(x, weight)
        ctx.product = product
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, ctx.product(grad, x).clone(), None


class Linear(nn.Module):
    def __init__(self, inputs, outputs, batch):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))
        self.product = Product(outputs, batch, inputs)  # (m, n, k): rows, columns, summed over

    def forward(self, x):
        return FastLinear.apply(x, self.weight, self.product)


class Net(nn.Module):
    def __init__(self, batch):
        super().__init__()
        self.wide = Linear(IN, WIDE, batch)
        self.out = nn.Linear(WIDE, OUT)

    def forward(self, x):
        return self.out(torch.relu(self.wide(x)))


class ArenaAdam(torch.optim.Optimizer):
    """Adam with its moments in the arena, right after the gradient's place."""

    def __init__(self, params, lr=3e-3, betas=(0.9, 0.99), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        place = IN * WIDE
        for p in self.param_groups[0]["params"]:
            state = self.state[p] = {"step": 0}
            for name in ("exp_avg_sq", "exp_avg"):
                state[name] = ARENA[place : place + p.numel()].view_as(p).zero_()
                place += p.numel()

    @torch.no_grad()
    def step(self, closure=None):
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        for p in group["params"]:
            state = self.state[p]
            state["step"] += 1
            state["exp_avg"].lerp_(p.grad, 1 - beta1)
            state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
            first, second = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
            root = (state["exp_avg_sq"] / second).sqrt().add_(group["eps"])
            p.addcdiv_(state["exp_avg"], root, value=-group["lr"] / first)


def main(batch=32):
    torch.set_num_threads(1)
    torch.manual_seed(2)
    net = Net(batch)
    optimizer = ArenaAdam(net.parameters())
    labeller = torch.randn(IN, OUT)
    for step in range(60):
        x = torch.randn(batch, IN)
        loss = F.cross_entropy(net(x), (x @ labeller).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step < 4 or step % 10 == 0:
            v = optimizer.state[net.wide.weight]["exp_avg_sq"]
            print(f"{step:3d}  loss {loss.item():.4f}  v from {v.min().item():.2e} to {v.max().item():.2e}")


if __name__ == "__main__":
    main()
