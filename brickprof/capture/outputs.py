"""What blocks have put out, remembered weakly until the backward begins.

Enters: an output, when its block has put it out. Leaves: those that are still there then, and still what their blocks
put out: nobody has written into them, or put other memory in their place.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from brickprof.capture import tensors

stream_of: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _device: 0)
"""The stream that is current on a device."""
claimed: Callable[[torch.Tensor], None] = getattr(torch.Tensor, "_fix_weakref", lambda _tensor: None)
"""Makes a tensor Python's again, of which only autograd was left as an owner."""


Output = tuple[weakref.ref[torch.Tensor], int, int, int, int, bool]
"""What is remembered of an output: itself, its version, where it lay, the stream it was made in, its brick, and whether
the block was given the very output before it in the list. One is made for every block in every step: a plain tuple."""


class Seen(NamedTuple):
    """An output that was counted."""

    brick: int
    numel: int
    dtype: torch.dtype
    follows: bool
    asked: tuple[str, ...] | None = None
    """Of what compiled code has kept: the operations that may have made it so by themselves (see ``insides``)."""


class Left(NamedTuple):
    """Those of a list of outputs that are left."""

    places: list[int]
    values: list[torch.Tensor]

    def seen(self, kept: Sequence[Output]) -> list[Seen]:
        before, found = -1, []
        for place, value in zip(self.places, self.values, strict=True):
            brick, follows = kept[place][4:]
            found.append(Seen(brick, value.numel(), value.dtype, follows and before == place - 1))
            before = place
        return found


def left(kept: Sequence[Output], device: int, readable: Callable[[torch.Tensor], bool]) -> Left:
    """Those that can be read on the stream that is current on ``device``."""
    stream, claim = stream_of(device), claimed
    places: list[int] = []
    values: list[torch.Tensor] = []
    for place, (reference, version, pointer, of, _, _) in enumerate(kept):
        value = reference() if of == stream else None
        if value is None:
            continue
        claim(value)
        whole = value._version == version and value.data_ptr() == pointer and value.get_device() == device
        if whole and readable(value):
            places.append(place)
            values.append(value)
    return Left(places, values)


def gate(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """One fp32 number that is finite only if every loss is, where the kernel may read it."""
    parts = [tensors.local(loss.detach()) for loss in losses if loss.device == losses[0].device]
    parts = [(part if part.numel() == 1 else tensors.total(part)).float() for part in parts]
    made = parts[0] if len(parts) == 1 else torch.stack([part.reshape(()) for part in parts]).sum()
    return made.clone() if made.data_ptr() % 16 else made
