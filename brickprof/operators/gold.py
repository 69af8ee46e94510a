"""The truth that accuracy is held against: the reference in fp32, on the very numbers that the operation got.

Enters: a problem and its reference. Leaves: an ``Outcome`` in fp32, gradients too, from the same upstream gradient.
The inputs are first rounded to the problem's type and then widened, so that rounding them counts for nobody; TF32 and
autocast are off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from brickprof.errors import UsageError
from brickprof.operators.operator import Arguments
from brickprof.operators.problem import Function, Outcome, Problem, Refused, run


def gold(problem: Problem, reference: Function) -> Outcome:
    """What ``reference`` gives in fp32; a ``UsageError`` where it gives nothing to judge by."""
    try:
        with plain_fp32(problem.device):
            found = run(reference, widened(problem.arguments), problem.operator.differentiable, problem.upstream)
    except Refused as refusal:
        raise UsageError(f"the reference of {problem.operator.name} cannot be used: {refusal}.") from refusal
    if found.broken:
        raise UsageError(f"the reference of {problem.operator.name} has no gradient: {found.broken}.")
    if found.output.dtype != torch.float32:
        raise UsageError(
            f"the reference of {problem.operator.name} gave {found.output.dtype} for fp32 arguments.",
            "A gold is fp32 from its inputs to its output.",
        )
    return found


def widened(arguments: Arguments) -> Arguments:
    return {name: _wide(value) for name, value in arguments.items()}


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


@contextlib.contextmanager
def plain_fp32(device: str) -> Iterator[None]:
    """Inside it fp32 is fp32: no TF32 in products and convolutions, no autocast."""
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast(torch.device(device).type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions
