"""Small tensors that lie here and there on a device, into memory of the host: one launch and no copy.

Enters: a page of pinned memory that begins with requests: where float32 numbers lie, how many, and where in the page
they are to go. Leaves: the numbers there, when the device gets to it; nobody waits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from brickprof.operators.launch import Bound, kernel

ROOM = 128
"""Requests that a page has room for: addresses, then counts, then places, each in words of 64 bits. The numbers follow.
A request of no numbers is none."""
_BLOCK = 256


@kernel("scalars")
@triton.jit
def _gather(page, ROOM: tl.constexpr, BLOCK: tl.constexpr):
    request = tl.program_id(0)
    address, count = tl.load(page + request), tl.load(page + ROOM + request)
    source = address.to(tl.pointer_type(tl.float32))
    out = (page + 3 * ROOM).to(tl.pointer_type(tl.float32)) + tl.load(page + 2 * ROOM + request)
    for first in tl.range(0, count, BLOCK):
        lane = first + tl.arange(0, BLOCK)
        inside = lane < count
        tl.store(out + lane, tl.load(source + lane, mask=inside, other=0.0), mask=inside)


class Gather:
    """The launch on one device, settled but for the page. Made by the thread that will use it."""

    def __init__(self, device: int) -> None:
        anchor = torch.zeros(3 * ROOM, dtype=torch.int64, device=f"cuda:{device}")
        self._bound: Bound = _gather.unheard().bind((ROOM,), page=anchor, ROOM=ROOM, BLOCK=_BLOCK, num_warps=1)
        self._bound.launch()

    def __call__(self, page: Tensor) -> None:
        """Fetches what ``page`` asks for."""
        self._bound.launch(page=page)


def warm(device: int) -> None:
    """Compiles for ``device``; launches nothing."""
    from triton.runtime.jit import MockTensor

    page: Any = MockTensor.wrap_dtype(torch.int64)
    with torch.cuda.device(device):
        _gather.prepare(page=page, ROOM=ROOM, BLOCK=_BLOCK, num_warps=1)
