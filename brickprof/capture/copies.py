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
    """Where a tensor's values lie: the host, a device by name, or nowhere. Nobody who answers for it is asked."""
    try:
        with torch._C.DisableTorchFunction():
            if tensor.is_cpu:
                return HOST
            return "" if tensor.is_meta else str(tensor.device)
    except Exception:  # a tensor that is a class's own affair
        return ""


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
    memory and ``straight``."""
    if way == "D2D":
        return False
    return not (non_blocking and pinned and straight)


def moved(way: str, numel: int, source_item: int, target_item: int, *, non_blocking: bool) -> int:
    """Bytes that travel: torch converts on the host, and on the device where it was asked not to block."""
    as_they_were = way in ("H2D", "D2H") and non_blocking is (way == "H2D")
    return numel * (source_item if as_they_were else target_item)


def straight(way: str, source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether a copy that does not wait begins or ends in the host's own tensor. Another type or layout is made on the
    device; what lies scattered on the host goes by way of ordinary memory there."""
    host = target if way == "D2H" else source
    if host.is_contiguous() and (way == "D2H" or source.numel() == target.numel()):
        return True
    alike = source.dtype is target.dtype and source.shape == target.shape and source.stride() == target.stride()
    return alike and _dense(host)


def _dense(tensor: torch.Tensor) -> bool:
    """Whether it has no gaps, in whatever order its dimensions lie."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return reach + 1 == tensor.numel()
