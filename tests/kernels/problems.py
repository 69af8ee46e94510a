"""What the cases of this folder share: problems, gradients, and bytes that are equal or not.

These files run in Triton's interpreter, which has to be asked for before triton is imported: tests/test_kernels.py
starts them, or by hand ``TRITON_INTERPRET=1 python -m pytest tests/kernels/case_*.py``.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from brickprof.operators.operator import Operator, Sizes, all_operators

assert os.environ.get("TRITON_INTERPRET") == "1", "these cases run in the interpreter: see tests/test_kernels.py"

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Problem(NamedTuple):
    operator: Operator
    sizes: Sizes

    def arguments(self, dtype: torch.dtype, seed: int = 0) -> dict[str, Any]:
        return self.operator.inputs(self.sizes, dtype, drawing(seed))


def drawing(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=drawing(seed)).to(dtype)


def problems(with_rows: bool = False) -> list[Any]:
    return [
        pytest.param(Problem(each, sizes), id=f"{each.name}-{'x'.join(map(str, sizes.values()))}")
        for each in all_operators().values()
        for sizes in each.sizes
        if each.rows or not with_rows
    ]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Signed zeros and NaN payloads included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    word = WORDS[one.element_size()]
    return torch.equal(one.detach().contiguous().view(word), other.detach().contiguous().view(word))


def results(operator: Operator, function: Any, arguments: dict[str, Any], upstream: Tensor) -> dict[str, Tensor]:
    """The output, and the gradient of every differentiable argument for ``upstream``."""
    given = dict(arguments)
    for name in operator.differentiable:
        given[name] = given[name].detach().clone().requires_grad_()
    out = function(**given)
    gradients = torch.autograd.grad(out, [given[name] for name in operator.differentiable], upstream.to(out.dtype))
    return {"out": out.detach(), **dict(zip(operator.differentiable, gradients, strict=True))}


def upstream_for(problem: Problem, dtype: torch.dtype, seed: int = 1) -> Tensor:
    """Random: an all-ones gradient hides mistakes."""
    out = problem.operator.reference(**problem.arguments(torch.float32))
    return drawn(*out.shape, seed=seed).to(dtype if out.shape else torch.float32)


_plain: dict[Any, dict[str, Tensor]] = {}


def plain(problem: Problem) -> dict[str, Tensor]:
    """Results of the problem as it stands, in fp32; computed once."""
    key = problem.operator.name, *problem.sizes.items()
    if key not in _plain:
        given, upstream = problem.arguments(torch.float32), upstream_for(problem, torch.float32)
        _plain[key] = results(problem.operator, problem.operator.function, given, upstream)
    return _plain[key]


def ulps(ours: Tensor, gold: Tensor) -> float:
    """The largest distance of fp32 values from a float64 gold, in units of the last place."""
    whole = gold.detach().double()
    place = torch.finfo(torch.float32).eps * whole.abs().clamp(min=torch.finfo(torch.float32).tiny)
    return float(((ours.detach().double() - whole).abs() / place).max())
