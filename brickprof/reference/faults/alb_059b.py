"""An optimizer that takes its moments from a memory pool that earlier work has used. Nobody sets them to zero, so the
second moment holds old activations when the first update divides by its root."""

import math

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-059b",
    "row": 10,
    "title": "moments taken from a used pool without zeroing",
    "family": "mlp",
    "kind": "numeric",
    "contracts": ["C-GPUINIT-001"],
    "root_causes": ["optimizer-state-uninitialised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "gpu": True,
}

torch.set_num_threads(1)
torch.manual_seed(21)


class Pool:
    def __init__(self, numbers):
        self.storage = torch.empty(numbers)
        self.used = 0

    def take(self, like):
        start, self.used = self.used, self.used + like.numel()
        return self.storage[start : self.used].view(like.shape)

    def free(self):
        self.used = 0


class Adam(torch.optim.Optimizer):
    def __init__(self, params, pool, lr=2e-3, betas=(0.9, 0.95), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"step": 0, "exp_avg": pool.take(p), "exp_avg_sq": pool.take(p)}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                state["step"] += 1
                m, v, t = state["exp_avg"], state["exp_avg_sq"], state["step"]
                m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                size = group["lr"] * math.sqrt(1 - beta2**t) / (1 - beta1**t)
                p.addcdiv_(m, v.abs().sqrt().add_(group["eps"]), value=-size)


model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
pool = Pool(40_000)

with torch.no_grad():  # warm-up pass, so that the first step is not slow
    x = torch.randn(128, 10)
    for layer in model:
        x = layer(x)
        pool.take(x).copy_(x)
pool.free()

optimizer = Adam(model.parameters(), pool)
truth = torch.randn(10, 3)
for step in range(100):
    x = torch.randn(32, 10)
    loss = F.cross_entropy(model(x), (x @ truth).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, round(loss.item(), 4))
