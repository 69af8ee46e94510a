"""AdamW over all parameters of a model in one launch.

    theta <- theta (1 - lr wd)                          the decay is its own, not part of the gradient
    m <- m + (1 - b1) (g - m),   v <- b2 v + (1 - b2) g^2
    theta <- theta - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)

Enters: parameters and gradients in fp32, bf16 or fp16, moments in fp32 or the parameters' type, by a table of addresses
on the device. Leaves: all of them updated in place. The arithmetic is fp32; a value is updated by itself.
What depends on the step alone, 1 - b2 among it, is worked out on the host: in fp32, 1 - 0.999 is off by 1e-5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from brickprof.kernels._blocks import load, store
from brickprof.kernels._tables import Kept, Table, table
from brickprof.operators.launch import FLOATS, kernel, takes_torch, wants

BLOCK, ROUNDS, WARPS = 1024, 4, 4
CHUNK = BLOCK * ROUNDS
_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _update(p, g, m, v, at, inside, rate, keep, r1, b2, r2, eps, c2, WHOLE: tl.constexpr):
    theta, grad = load(p, at, inside, WHOLE), load(g, at, inside, WHOLE)
    first, second = load(m, at, inside, WHOLE), load(v, at, inside, WHOLE)
    theta = theta * keep
    first = first + r1 * (grad - first)
    second = b2 * second + r2 * grad * grad
    theta = theta - rate * tl.div_rn(first, tl.sqrt_rn(second) * c2 + eps)
    store(p, at, inside, theta, WHOLE)
    store(m, at, inside, first, WHOLE)
    store(v, at, inside, second, WHOLE)


@kernel("adamw")
@triton.jit(do_not_specialize=["rate", "keep", "r1", "b2", "r2", "eps", "c2"])
def _adamw(
    addresses, numels, owners, starts, rate, keep, r1, b2, r2, eps, c2, tensors,
    P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    owner, start = tl.load(owners + chunk), tl.load(starts + chunk)
    left = tl.load(numels + owner) - start
    p = tl.load(addresses + owner).to(tl.pointer_type(P))
    g = tl.load(addresses + tensors + owner).to(tl.pointer_type(G))
    m = tl.load(addresses + 2 * tensors + owner).to(tl.pointer_type(S))
    v = tl.load(addresses + 3 * tensors + owner).to(tl.pointer_type(S))
    if ALIGNED:
        p, g = tl.multiple_of(p, 16), tl.multiple_of(g, 16)
        m, v = tl.multiple_of(m, 16), tl.multiple_of(v, 16)
        start = tl.multiple_of(start, BLOCK)
    p += start
    g += start
    m += start
    v += start
    lane = tl.arange(0, BLOCK)
    if left >= BLOCK * ROUNDS:
        for turn in tl.range(0, ROUNDS):
            at = turn * BLOCK + lane
            _update(p, g, m, v, at, at < left, rate, keep, r1, b2, r2, eps, c2, True)
    else:
        for turn in tl.range(0, ROUNDS):
            at = turn * BLOCK + lane
            _update(p, g, m, v, at, at < left, rate, keep, r1, b2, r2, eps, c2, False)


def _table(groups: Sequence[Sequence[Tensor]], pointers: list[int]) -> Table:
    device = groups[0][0].device
    for name, tensors in zip(("parameters", "gradients", "exp_avg", "exp_avg_sq"), groups, strict=True):
        for number, (tensor, first) in enumerate(zip(tensors, groups[0], strict=True)):
            label = f"{name}[{number}]"
            wants("adamw", label, tensor.dtype in FLOATS, "float32, bfloat16 or float16", tensor.dtype)
            wants("adamw", label, tensor.dtype == tensors[0].dtype, f"{tensors[0].dtype}", tensor.dtype)
            wants("adamw", label, tensor.device == device, f"on {device}", tensor.device)
            wants("adamw", label, tensor.shape == first.shape, str(tuple(first.shape)), tuple(tensor.shape))
            wants("adamw", label, tensor.stride() == first.stride(), f"strides {first.stride()}", tensor.stride())
    wants("adamw", "exp_avg_sq", groups[2][0].dtype == groups[3][0].dtype, "of exp_avg's type", groups[3][0].dtype)
    return table(pointers, [tensor.numel() for tensor in groups[0]], chunk=CHUNK, device=device)


class Update:
    """One update of the same tensors again and again."""

    def __init__(self) -> None:
        self._kept = Kept[Table]()

    def __call__(
        self, *, parameters: Sequence[Tensor], gradients: Sequence[Tensor], exp_avg: Sequence[Tensor],
        exp_avg_sq: Sequence[Tensor], step: int, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float,
    ) -> None:  # fmt: skip
        groups = parameters, gradients, exp_avg, exp_avg_sq
        pointers = [tensor.data_ptr() for group in groups for tensor in group]
        numels = [tensor.numel() for tensor in parameters]
        placed = self._kept.at(pointers, numels, lambda: _table(groups, pointers))
        chunks = len(placed.owners)
        if chunks:
            size = sum(group[0].element_size() for group in groups)
            _adamw.launch(
                (chunks,), bytes_moved=size * 2 * CHUNK * chunks,
                addresses=placed.addresses, numels=placed.numels, owners=placed.owners, starts=placed.starts,
                rate=lr / (1 - betas[0] ** step), keep=1 - lr * weight_decay, r1=1 - betas[0], b2=betas[1],
                r2=1 - betas[1], eps=eps, c2=1 / math.sqrt(1 - betas[1] ** step), tensors=len(parameters),
                P=_TYPES[parameters[0].dtype], G=_TYPES[gradients[0].dtype], S=_TYPES[exp_avg[0].dtype],
                BLOCK=BLOCK, ROUNDS=ROUNDS, ALIGNED=placed.aligned, num_warps=WARPS,
            )  # fmt: skip


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW on one kernel; its state has the same names, so checkpoints move between the two."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:  # fmt: skip
        wants("adamw", "lr", lr >= 0, "at least 0", lr)
        wants("adamw", "betas", all(0 <= beta < 1 for beta in betas), "each in [0, 1)", betas)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._updates: dict[Any, Update] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            for key, parameters in self._alike(number, group["params"]).items():
                self._step(group, parameters, self._updates.setdefault(key[:-1], Update()), key[-1])
        return loss

    def _alike(self, number: int, parameters: list[Tensor]) -> dict[Any, list[Tensor]]:
        """Parameters that one launch takes: of one type, at the same step."""
        alike: dict[Any, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is None:
                continue
            wants("adamw", "gradient", not parameter.grad.is_sparse, "dense", "a sparse one")
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros(())
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["step"] += 1
            key = (number, parameter.dtype, parameter.grad.dtype, int(state["step"]))
            alike.setdefault(key, []).append(parameter)
        return alike

    def _step(self, group: dict[str, Any], parameters: list[Tensor], update: Update, step: int) -> None:
        states = [self.state[parameter] for parameter in parameters]
        given = {
            "parameters": parameters,
            "gradients": [parameter.grad for parameter in parameters],
            "exp_avg": [state["exp_avg"] for state in states],
            "exp_avg_sq": [state["exp_avg_sq"] for state in states],
            "step": step, "lr": float(group["lr"]), "betas": group["betas"], "eps": group["eps"],
            "weight_decay": group["weight_decay"],
        }  # fmt: skip
        reference(**given) if takes_torch("adamw", parameters[0]) else update(**given)


def reference(
    *, parameters: Sequence[Tensor], gradients: Sequence[Tensor], exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor], step: int, lr: float, betas: tuple[float, float], eps: float, weight_decay: float,
) -> None:  # fmt: skip
    """The same update in plain torch, a tensor at a time."""
    for p, g, m, v in zip(parameters, gradients, exp_avg, exp_avg_sq, strict=True):
        wide, grad = p.float() * (1 - lr * weight_decay), g.float()
        first = m.float() + (1 - betas[0]) * (grad - m.float())
        second = betas[1] * v.float() + (1 - betas[1]) * grad * grad
        root = second.sqrt() / math.sqrt(1 - betas[1] ** step) + eps
        p.copy_(wide - lr / (1 - betas[0] ** step) * first / root)
        m.copy_(first)
        v.copy_(second)
