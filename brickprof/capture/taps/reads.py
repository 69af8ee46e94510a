"""Values read on the host: ``.item()``, ``bool(t)``, ``float(t)``, ``.tolist()``, ``.cpu()``.

Enters: ``watch`` and ``unwatch``, around a step that is sampled. Leaves: a count by the user's line. Only then are
these methods wrapped; never once something was compiled, and our own reads do not count.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import torch

from brickprof.capture import sites

_NAMES = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "cpu")
_BETWEEN = tuple(os.path.join("torch", *path) for path in (("_tensor.py",), ("overrides.py",), ("utils", "_device.py")))
"""What only hands a call on: ``format(loss)``, and function modes."""
_wrapped: list[str] = []
found: dict[str, int] = {}
moved: dict[str, int] = {}
"""Of those, the ones that fetched a whole tensor."""
device = 0
"""How many of the reads were of a tensor on a device: each of them waited for it."""


def watch() -> None:
    """From now on reads are counted."""
    global device
    found.clear()
    moved.clear()
    device = 0
    if _wrapped:
        return
    for name in _NAMES:
        if name not in torch.Tensor.__dict__:
            setattr(torch.Tensor, name, _counting(getattr(torch.Tensor, name), name))
            _wrapped.append(name)


def unwatch() -> dict[str, int]:
    """Puts the methods back; how often each of the user's lines read something."""
    while _wrapped:
        delattr(torch.Tensor, _wrapped.pop())
    return dict(found)


def _counting(original: Any, name: str) -> Any:
    moves = name == "cpu"

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not moves or not self.is_cpu:
            _count(on_host=self.is_cpu, whole=self.dim() > 0)
        return result

    call.__name__ = name
    return call


def _count(*, on_host: bool, whole: bool) -> None:
    global device
    with contextlib.suppress(Exception):
        site = _reader(on_host)
        if site:
            found[site] = found.get(site, 0) + 1
            moved[site] = moved.get(site, 0) + whole
            device += not on_host


def _reader(on_host: bool) -> str:
    """The user's line that reads; nothing where we do, or where torch reads for itself: a search, a check."""
    frame = sys._getframe(3)
    while frame is not None:
        name = frame.f_code.co_filename
        if sites.users(name):
            return sites.line(frame)
        if on_host or sites.ours(name) or not (name.endswith(_BETWEEN) or sites.wraps(name)):
            return ""
        frame = frame.f_back  # type: ignore[assignment]
    return ""
