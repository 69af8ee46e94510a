"""Whether tensors are like others: the same types, devices, sizes and strides, in as few questions as there can be.

Enters: some tensors. Leaves: a function that says of others whether each is like the one in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


def likeness(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """Tells whether others are like ``tensors``, of which it keeps none. torch has that in one call, for what it
    compiles; a call for each of many tensors takes longer than all the rest."""
    try:
        from torch._C._dynamo.guards import TensorGuards

        check: Callable[..., bool] = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        if check(*tensors):
            return check
    except (ImportError, TypeError, RuntimeError):  # another torch
        pass
    sizes = list(map(_likeness_of, tensors))
    return lambda *others: list(map(_likeness_of, others)) == sizes


def _likeness_of(tensor: Any) -> tuple[Any, ...]:
    if not isinstance(tensor, Tensor):
        return (type(tensor),)
    return type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.requires_grad
