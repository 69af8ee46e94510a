"""A device on the host: tensors whose values cannot be read at once and whose copies arrive some time later."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
import time
from collections.abc import Callable

import torch

import brickprof.capture
import brickprof.probes
from brickprof.capture import tensors
from brickprof.capture.readback import Readback

_on_host = tensors.on_host
for _package in (brickprof.capture, brickprof.probes):  # all of them now: what is loaded later would keep the pretence
    for _found in pkgutil.iter_modules(_package.__path__, f"{_package.__name__}."):
        if not _found.ispkg and not _found.name.endswith(".boot"):
            importlib.import_module(_found.name)


class Mark:
    def __init__(self, ready: float) -> None:
        self._ready = ready

    def query(self) -> bool:
        return time.monotonic() >= self._ready


class Lane:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.at = "stream"
        self.marks = 0

    def recording(self) -> bool:
        return False

    def serves(self, tensor: torch.Tensor) -> bool:
        return True

    def stream(self, tensor: torch.Tensor) -> str:
        return self.at

    def number(self, tensor: torch.Tensor) -> str:
        return self.at

    def current(self, tensor: torch.Tensor) -> Callable[[], str]:
        return lambda: self.at

    def on(self, stream: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def mark(self, stream: str) -> Mark:
        self.marks += 1
        return Mark(time.monotonic() + self._seconds)

    def buffer(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(numel, dtype=dtype)


def _never(_tensor: torch.Tensor) -> bool:
    return False


def pretend(monkeypatch, seconds: float = 0.01) -> Lane:
    """From now on every tensor counts as one of a device, and what is read of it arrives after ``seconds``."""
    for name, module in list(sys.modules.items()):
        if name.startswith("brickprof.") and getattr(module, "on_host", None) is _on_host:
            monkeypatch.setattr(module, "on_host", _never)
    lane = Lane(seconds)
    monkeypatch.setattr(Readback, "lane", lane)
    return lane
