"""Copies between host and device: which way, how many bytes, and whether the host waits.

Enters: where a copy comes from and where it goes (``place`` says that of a tensor), whether the host's side is pinned
and whether the copy was asked not to block. Leaves: ``Copy``. Nothing here touches a device; tests put another
``place`` in its stead.

    H2D, D2H    between the host and a device          D2D    from one device to another, or ``within`` one
    pin         from ordinary host memory to pinned    ""     no transfer: one place, or no place at all
"""

from __future__ import annotations

from typing import NamedTuple

import torch

HOST = "host"
TRANSFERS = ("H2D", "D2H", "D2D")
PIN = "pin"


class Copy(NamedTuple):
    """One copy, as a listener hears of it."""

    direction: str
    bytes: int
    how: str
    """What was called: to, cuda, cpu, copy_, tensor, index, ...; ``backward`` for what autograd sends back."""
    site: str
    """The user's line; empty where no line of the user's led to it."""
    start: int
    end: int
    pinned: bool | None = False
    non_blocking: bool = False
    blocking: bool = True
    """Whether the host had to wait, whatever it had asked for."""
    device: str = ""
    differentiable: bool = False
    within: bool = False
    """Whether it stays on its device: no budget of transfers counts it."""


def place(tensor: torch.Tensor) -> str:
    """Where a tensor's values lie: the host, a device by name, or nowhere."""
    if tensor.is_cpu:
        return HOST
    if tensor.is_meta:
        return ""
    return str(tensor.device)


def where(device: torch.device | str | int) -> str:
    """Where a tensor's values will lie that is sent to ``device``."""
    wanted = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if wanted.type in ("cpu", "meta"):
        return HOST if wanted.type == "cpu" else ""
    if wanted.type == "cuda" and wanted.index is None and torch.cuda.is_initialized():
        return f"cuda:{torch.cuda.current_device()}"
    return str(wanted)


def direction(source: str, target: str) -> str:
    if not source or not target or source == target:
        return ""
    if source == HOST:
        return "H2D"
    return "D2H" if target == HOST else "D2D"


def back(way: str) -> str:
    """The way of the gradient of what went ``way``."""
    return {"H2D": "D2H", "D2H": "H2D"}.get(way, way)


def blocks(way: str, *, pinned: bool | None, non_blocking: bool, straight: bool) -> bool:
    """Whether the host waits for a copy. Between devices it never does. Else it was to be asked for, from or to pinned
    memory and ``straight``: one type, one layout; whatever has to be converted goes through ordinary memory."""
    if way == "D2D":
        return False
    return not (non_blocking and pinned and straight)


def moved(way: str, numel: int, source_item: int, target_item: int) -> int:
    """Bytes that travel: torch converts on the host before it sends, and after it has received."""
    return numel * (source_item if way == "D2H" else target_item)


def straight(source: torch.Tensor, target: torch.Tensor) -> bool:
    return source.dtype is target.dtype and (
        source.stride() == target.stride() or (source.is_contiguous() and target.is_contiguous())
    )
