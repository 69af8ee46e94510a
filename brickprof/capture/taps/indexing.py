"""Indices that cost more than they look: a mask on a device makes the host wait for the size of the result; an index
or a value on the host is copied to the device first.

Enters: a tensor and what stands in its brackets. Leaves: whether the host waits, and how many bytes are sent.
"""

from __future__ import annotations

from typing import Any

import torch

from brickprof.capture import copies

_MASKS = (torch.bool, torch.uint8)
_PLAIN = frozenset({int, slice, type(None), type(Ellipsis), bool, str})
_INDEX_BYTES = 8


def plain(index: Any) -> bool:
    """Whether ``index`` is one that selects without looking at values."""
    if type(index) is tuple:
        return all(type(part) in _PLAIN for part in index)
    return type(index) in _PLAIN


def masked(index: Any) -> bool:
    """Whether a mask on a device is part of ``index``."""
    return any(
        isinstance(part, torch.Tensor) and part.dtype in _MASKS and copies.place(part) not in ("", copies.HOST)
        for part in _parts(index)
    )


def waits_to_store(index: Any, value: Any) -> bool:
    """Whether ``t[index] = value`` waits: one number is filled in under the mask without counting it."""
    return masked(index) and isinstance(value, torch.Tensor) and value.numel() != 1


def sent(index: Any) -> int:
    """Bytes of ``index`` that lie on the host and have to be sent; a single number goes along with the launch."""
    return sum(_bytes(part) for part in _parts(index))


def _parts(index: Any) -> tuple[Any, ...]:
    return index if type(index) is tuple else (index,)


def _bytes(part: Any) -> int:
    if isinstance(part, torch.Tensor):
        many = part.dim() > 0 and copies.place(part) == copies.HOST
        return part.numel() * part.element_size() if many else 0
    return _INDEX_BYTES * len(part) if type(part) is list else 0
