"""Collectives: which, in what order, how long they took, and whether their handles were waited for.

Enters: collectives of ``torch.distributed``. Leaves: ``collective`` events in steps whose facts are written: ``done``,
or ``open`` and later ``wait`` for an asynchronous one, ``orphaned`` where nobody ever waited. One that does not come
back within seconds is told as ``open`` by a thread that watches: that is where this rank hangs.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from brickprof.capture import sites
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.taps import collectives

_MOST_IN_A_STEP = 128
_STUCK_NS = 5_000_000_000
_counter = time.perf_counter_ns


class CollectivesProbe(Probe):
    name = "collectives"
    every_step = ("collective",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._step = -1
        self._written = 0
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def collective(self, issued: collectives.Issued, phase: str) -> None:
        if self._watcher is None and (issued.ranks or 2) > 1:
            self._watcher = threading.Thread(target=self._watch, name="brickprof-collectives", daemon=True)
            self._watcher.start()
        session = self.session
        if session.step != self._step:
            self._step, self._written = session.step, 0
        self._written += 1
        if self._written <= _MOST_IN_A_STEP:
            session.fact("collective", _fields(issued, phase), wanted=session.on.facts or phase == "orphaned")

    def close(self) -> None:
        self._stop.set()
        left = list(collectives.handles.values())
        collectives.handles.clear()
        for _, issued in left:
            self.session.fact("collective", _fields(issued, "orphaned"), always=True)

    def _watch(self) -> None:
        told: collectives.Issued | None = None
        while not self._stop.wait(1.0):
            issued = collectives.current
            if issued is None or issued is told or _counter() - issued.started < _STUCK_NS:
                continue
            told = issued
            issued.site = issued.site or _where(issued.thread)
            self.session.fact("collective", _fields(issued, "open"), always=True)


def _fields(issued: collectives.Issued, phase: str) -> dict[str, Any]:
    return {
        "op": issued.op,
        "seq": issued.seq,
        "group": issued.group,
        "ranks": issued.ranks,
        "numel": issued.numel,
        "dtype": issued.dtype,
        "asynchronous": issued.asynchronous,
        "waited": issued.waited,
        "phase": phase,
        "site": issued.site,
        "ns": (issued.ended or _counter()) - issued.started,
    }


def _where(thread: int) -> str:
    """The user's line in which ``thread`` is."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if sites.users(frame.f_code.co_filename):
            return sites.line(frame)
        frame = frame.f_back
    return ""
