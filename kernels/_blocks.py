"""Values in blocks: how a kernel reads and writes one, and the launch of a kernel that takes values one by one.

Enters: pointers, places and a mask on the device; tensors of one size on the host. Leaves: fp32 values, or values
stored in the type of their buffer; and a launch of one program a block.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from brickprof.operators.launch import Kernel

BLOCK = 1024


@triton.jit
def load(x, at, inside, WHOLE: tl.constexpr):
    """Without a mask where a block is whole: a mask of unknown length forbids wide loads."""
    if WHOLE:
        return tl.load(x + at).to(tl.float32)
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store(y, at, inside, value, WHOLE: tl.constexpr):
    if WHOLE:
        tl.store(y + at, value.to(y.dtype.element_ty))
    else:
        tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)


def each_value(brick: Kernel, **tensors: Tensor) -> None:
    """Launches ``brick`` over all values of ``tensors``, which are contiguous and of one size."""
    first = next(iter(tensors.values()))
    count = first.numel()
    if count:
        brick.launch(
            (triton.cdiv(count, BLOCK),), needs=dict.fromkeys(tensors, count),
            bytes_moved=first.element_size() * count * len(tensors), flops=8 * count,
            **tensors, count=count, BLOCK=BLOCK, num_warps=8 if len(tensors) > 3 else 4,
        )  # fmt: skip
