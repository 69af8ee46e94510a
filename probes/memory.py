"""Memory of the process and of its device, step by step but rarely.

Enters: ends of sampled steps: one a second at most, and with a device those that
are looked at in full early on. Leaves: ``memory`` events.
"""

from __future__ import annotations

import time

import torch

from brickprof.capture.cadence import LOOKS
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session

_EVERY_NS = 1_000_000_000
_CLOSE_LOOKS = 40
"""The first looks come four a second: a leak shows in a run of seconds too."""
_STATM = "/proc/self/statm"


class MemoryProbe(Probe):
    name = "memory"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._last = 0
        self._looks = 0
        self._page = _page_size()

    def step_end(self, step: int) -> None:
        stamp, device = time.perf_counter_ns(), torch.cuda.is_initialized()
        soon = stamp - self._last < (_EVERY_NS if self._looks > _CLOSE_LOOKS else _EVERY_NS // 4)
        if soon and not (device and step in LOOKS):
            return
        self._last = stamp
        self._looks += 1
        fields: dict[str, int | None] = {"rss": self._resident()}
        if device:
            fields["device_allocated"] = torch.cuda.memory_allocated()
            fields["device_reserved"] = torch.cuda.memory_reserved()
            fields["device_peak"] = torch.cuda.max_memory_allocated()
        self.session.fact("memory", fields, always=True)

    def _resident(self) -> int | None:
        try:
            with open(_STATM, "rb") as stream:
                return int(stream.read().split()[1]) * self._page
        except (OSError, IndexError, ValueError):
            return None


def _page_size() -> int:
    import resource

    return resource.getpagesize()
