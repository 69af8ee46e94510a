"""Single numbers that lie here and there on a device, into memory of the host: one launch and no copy.

Enters: a page of pinned memory whose first words are addresses of float32 numbers. Leaves: the numbers behind them, as
float64, when the device gets there; nobody waits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from brickprof.operators.launch import Bound, kernel

ROOM = 64
"""Numbers that a page has room for; a page has twice as many words of 64 bits."""


@kernel("scalars")
@triton.jit(do_not_specialize=["count"])
def _gather(page, count, ROOM: tl.constexpr):
    lane = tl.arange(0, ROOM)
    inside = lane < count
    address = tl.load(page + lane, mask=inside, other=0)
    value = tl.load(address.to(tl.pointer_type(tl.float32)), mask=inside, other=0.0)
    tl.store((page + ROOM).to(tl.pointer_type(tl.float64)) + lane, value.to(tl.float64), mask=inside)


class Gather:
    """The launch on one device, settled but for the page. Made by the thread that will use it."""

    def __init__(self, device: int) -> None:
        anchor = torch.empty(2 * ROOM, dtype=torch.int64, device=f"cuda:{device}")
        self._bound: Bound = _gather.unheard().bind((1,), page=anchor, count=0, ROOM=ROOM, num_warps=1)
        self._bound.launch()

    def __call__(self, page: Tensor, count: int) -> None:
        """Fetches the first ``count`` numbers whose addresses stand in ``page``."""
        self._bound.launch(page=page, count=count)


def warm(device: int) -> None:
    """Compiles for ``device``; launches nothing."""
    from triton.runtime.jit import MockTensor

    page: Any = MockTensor.wrap_dtype(torch.int64)
    with torch.cuda.device(device):
        _gather.function.run(grid=(1,), warmup=True, page=page, count=0, ROOM=ROOM, num_warps=1)
