"""Operations in plain torch whose every fault is known; each keeps its bits unless it is told not to.

Sums run column by column or row by row, in a loop: torch's own reductions may change their order with the shape.
"""

from __future__ import annotations

import math

import torch

from brickprof.operators.operator import Operator, Schedule


def along(x: torch.Tensor, parts: int = 1) -> torch.Tensor:
    """The sum of each row, from left to right, in so many parts."""
    sums = []
    for part in x.chunk(parts, dim=-1):
        total = torch.zeros_like(part[..., 0])
        for column in part.unbind(-1):
            total = total + column
        sums.append(total)
    whole = sums[0]
    for each in sums[1:]:
        whole = whole + each
    return whole


def down(x: torch.Tensor) -> torch.Tensor:
    """The sum over rows, from the first to the last."""
    total = x.new_zeros(x.shape[1:])
    for row in x:
        total = total + row
    return total


class _Mix(torch.autograd.Function):
    """y = x * weight + sum(x); ``fault`` names what is wrong with it."""

    @staticmethod
    def forward(ctx, x, weight, fault):
        ctx.fault, ctx.rows = fault, len(x)
        ctx.save_for_backward(x, weight)
        wide = x.float()
        parts = 4 if fault == "split by rows" and len(x) > 3 else 1
        y = wide * weight.float() + along(wide, parts)[:, None]
        if fault == "neighbours":
            y = y + 1e-6 * wide.mean(0)
        if fault == "inaccurate":
            y = y * 1.5
        if fault == "nan":
            y[1, 2] = math.nan
        if fault == "infinite":
            y[1, 2] = math.inf
        if fault == "position" and len(x) > 1:
            y[0] = y[0] + 1e-6
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, weight = (each.float() for each in ctx.saved_tensors)
        wide = dy.float()
        if ctx.fault == "backward raises":
            raise RuntimeError("no backward today\nand a second line")
        parts = 4 if ctx.fault == "gradient split by rows" and ctx.rows > 3 else 1
        dx = wide * weight + along(wide, parts)[:, None]
        if ctx.fault == "gradient wrong":
            dx = wide * weight
        if ctx.fault == "gradient of ones":
            dx = weight + torch.full_like(wide, wide.shape[-1])
        products = wide * x
        dw = down(products)
        if ctx.fault == "weight split by rows":
            half = len(x) // 2
            dw = down(products[:half]) + down(products[half:])
        return dx.to(dy.dtype), dw.to(dy.dtype), None


def mix(fault: str = ""):
    def function(*, x, weight):
        if fault == "raises":
            raise RuntimeError("out of luck\nwith a long story behind it")
        if fault == "raises for one row" and len(x) == 1:
            raise RuntimeError("one row is too few")
        if fault == "wants contiguous" and not x.is_contiguous():
            raise ValueError("x should be contiguous")
        if fault == "no tensor":
            return [x]
        if fault == "shape":
            return x[:, 1:] * weight[1:]
        if fault == "no gradient":
            return _Mix.apply(x, weight, fault).detach()
        if fault == "no gradient of weight":
            return _Mix.apply(x, weight.detach(), fault)
        if fault == "writes into x":
            with torch.no_grad():
                y = _Mix.apply(x.clone().requires_grad_(), weight, fault)
                x.zero_()
            return y
        return _Mix.apply(x, weight, fault)

    return function


def mix_reference(*, x, weight):
    return x * weight + x.sum(-1, keepdim=True)


def mix_inputs(sizes, dtype, draw):
    x = torch.randn(sizes["rows"], sizes["width"], generator=draw, device=draw.device)
    weight = torch.randn(sizes["width"], generator=draw, device=draw.device)
    return {"x": x.to(dtype), "weight": weight.to(dtype)}


def mixing(fault: str = "", **changes) -> Operator:
    fields = {
        "name": "mix", "chain": 2, "family": "reduction", "contract": "none", "function": mix(fault),
        "reference": mix_reference, "inputs": mix_inputs, "sizes": ({"rows": 9, "width": 24},), "rows": {"x": 0},
        "differentiable": ("x", "weight"), "large": ({"rows": 12, "width": 24},),
    }  # fmt: skip
    return Operator(**{**fields, **changes})


def rectify(*, x):
    """max(x, 0), whose zeros are negative when a row is alone."""
    zero = torch.tensor(-0.0 if len(x) == 1 else 0.0)
    return torch.where(x > 0, x, zero.to(x.dtype))


def rectifying(**changes) -> Operator:
    fields = {
        "name": "rectify", "chain": 5, "family": "elementwise", "contract": "none", "function": rectify,
        "reference": lambda *, x: x.clamp(min=0), "sizes": ({"rows": 4, "width": 6},), "rows": {"x": 0},
        "inputs": lambda sizes, dtype, draw: {"x": mix_inputs(sizes, dtype, draw)["x"]},
    }  # fmt: skip
    return Operator(**{**fields, **changes})


def choosing() -> Operator:
    """Integers as rows, along with logits whose rows lie along dimension 1; the output has them in front."""

    def function(*, logits, target):
        return logits.gather(0, target[None].long())[0] * 1.0

    def inputs(sizes, dtype, draw):
        logits = torch.randn(sizes["vocabulary"], sizes["rows"], generator=draw, device=draw.device)
        return {
            "logits": logits.to(dtype),
            "target": torch.randint(0, sizes["vocabulary"], (sizes["rows"],), generator=draw, device=draw.device),
        }

    return Operator(
        name="choose", chain=8, family="elementwise", contract="none", function=function, reference=function,
        inputs=inputs, sizes=({"rows": 6, "vocabulary": 5},), rows={"logits": 1, "target": 0},
        differentiable=("logits",),
    )  # fmt: skip


def in_halves(fault: bool):
    """A schedule: the row's columns in two calls."""

    def compare(operation, given):
        whole = operation(**given)
        again = torch.cat([operation(**{**given, "x": part}) for part in given["x"].split(2)])
        return whole, again + 1e-3 if fault else again

    return Schedule("T5", "two rows at a time", compare)


# -- the five operations of the chain


def _product(x, w):
    total = torch.zeros(x.shape[0], w.shape[0])
    for column in range(x.shape[1]):
        total = total + x[:, column : column + 1].float() * w[:, column].float()
    return total


def _rmsnorm(*, x, weight, eps):
    scale = torch.rsqrt(along(x.float().square()) / x.shape[-1] + eps)
    return (x.float() * scale[:, None] * weight.float()).to(x.dtype)


def _gemm(*, x, w):
    return _product(x, w).to(x.dtype)


def _attention(*, q, k, v):
    length = q.shape[2]
    score = along(q[:, :, :, None].float() * k[:, :, None].float()) / math.sqrt(q.shape[-1])
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    score = score.masked_fill(~seen, -math.inf)
    share = (score - score.amax(-1, keepdim=True)).exp()
    mixed = along((share[..., None] * v[:, :, None].float()).transpose(-1, -2))
    return (mixed / along(share)[..., None]).to(q.dtype)


def _logprob(*, logits, target):
    wide = logits.float()
    most = wide.amax(-1)
    chosen = wide.gather(1, target[:, None])[:, 0]
    return chosen - most - along((wide - most[:, None]).exp()).log()


def chained(**faults) -> dict[str, Operator]:
    """By name; ``faults`` puts another function in the place of one."""
    functions = {
        "rmsnorm": (_rmsnorm, "reduction"), "attention": (_attention, "attention"), "gemm": (_gemm, "reduction"),
        "lm_head": (_gemm, "reduction"), "logprob": (_logprob, "logprob"),
    }  # fmt: skip
    return {
        name: Operator(
            name=name, chain=at, family=family, contract="none", function=faults.get(name, function),
            reference=function, inputs=mix_inputs, sizes=({"rows": 3, "width": 4},),
        )
        for at, (name, (function, family)) in enumerate(functions.items())
    }  # fmt: skip
