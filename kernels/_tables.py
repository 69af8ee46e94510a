"""Many tensors in one launch: a table on the device says where each lies and which chunk of it a program takes.

Enters: the addresses and lengths of tensors. Leaves: a ``Table`` of both, cut into chunks, on their device; and, for as
long as the tensors stay where they are, whatever was made for them there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
import triton
from torch import Tensor

Made = TypeVar("Made")


class Table(NamedTuple):
    addresses: Tensor
    numels: Tensor
    owners: Tensor
    """The tensor that each chunk is of."""
    starts: Tensor
    """Where in its tensor each chunk begins."""
    parts: list[int]
    """Chunks of each tensor, on the host."""
    aligned: bool
    """Whether every address is a multiple of 16 bytes."""


def table(pointers: Sequence[int], numels: Sequence[int], *, chunk: int, device: torch.device) -> Table:
    """Tensors of ``numels`` elements, cut into chunks of ``chunk``. Others of the same sizes may be walked beside them:
    their ``pointers`` follow, group after group."""
    parts = [triton.cdiv(numel, chunk) for numel in numels]
    return Table(
        put(pointers, torch.int64, device), put(numels, torch.int64, device),
        put([owner for owner, part in enumerate(parts) for _ in range(part)], torch.int32, device),
        put([start for numel in numels for start in range(0, numel, chunk)], torch.int64, device),
        parts, all(pointer % 16 == 0 for pointer in pointers),
    )  # fmt: skip


def put(values: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers on the device; nobody waits for them to arrive there."""
    out = torch.empty(len(values), dtype=dtype, device=device)
    send(values, out)
    return out


def send(values: Sequence[int], out: Tensor) -> None:
    """Writes ``values`` over ``out``, behind all that the stream has to do before."""
    host = torch.tensor(values, dtype=out.dtype, device="cpu")
    if out.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        out.copy_(host)
        return
    with torch.cuda.device(out.device):
        page = _page(host.nbytes)
        staged = page[: host.nbytes].view(host.dtype)
        staged.copy_(host)
        out.copy_(staged, non_blocking=True)
        read = torch.cuda.Event()
        read.record()
        _pages.append((page, read))


_pages: list[tuple[Tensor, torch.cuda.Event]] = []
"""Pinned memory that a copy may still read. It is never given back: on a device that has failed that would end the
process."""


def _page(size: int) -> Tensor:
    for place, (page, read) in enumerate(_pages):
        if page.nbytes >= size and read.query():
            del _pages[place]
            return page
    page = torch.empty(1 << max(12, (size - 1).bit_length()), dtype=torch.uint8, device="cpu", pin_memory=True)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(page))
    return page


class Kept(Generic[Made]):
    """What was made for tensors, until they are others."""

    def __init__(self) -> None:
        self._pointers: list[int] = []
        self._numels: list[int] = []
        self._made: Made | None = None

    def alike(self, numels: list[int]) -> Made | None:
        """What there is for tensors of ``numels`` elements, wherever they lie."""
        return self._made if numels == self._numels else None

    def at(
        self, pointers: list[int], numels: list[int], make: Callable[[], Made],
        move: Callable[[Made], bool] = lambda _: False,
    ) -> Made:  # fmt: skip
        """What there is for tensors of ``numels`` elements at ``pointers``. ``move`` is asked first when only the
        addresses are new; where it cannot, all is made anew."""
        if self._made is not None and numels == self._numels:
            if pointers == self._pointers:
                return self._made
            if move(self._made):
                self._pointers = pointers
                return self._made
        self._made, self._pointers, self._numels = make(), pointers, numels
        return self._made
