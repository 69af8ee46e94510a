"""Who else holds memory on a card.

Enters: the processes that NVML lists on a card, every few seconds. Leaves: which of them are the run's own, and the
others, each with whether it was there before and whether it is orphaned: its parent is gone, it is no service of the
system, and it does nothing; one that works again is none and never was. Inside a container NVML may speak of the pids
of another namespace: a stranger is believed only when the list has shown one of the run's own processes, or when the
stranger can be seen to hold a card open.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brickprof.launch import processes

_WATCHED_SECONDS = 10.0
_LONG_SECONDS = 60.0
"""Who has done nothing for so long, does nothing; of one that is watched for less, all of that time counts."""
_IDLE_SHARE = 0.01
_REAPERS = frozenset({"systemd", "init", "tini", "dumb-init", "docker-init"})
_MOST = 32


@dataclass(slots=True)
class _Stranger:
    pid: int
    name: str
    start_ticks: int
    since: float
    cpu: float
    """What it had used when it was last judged."""
    before: bool
    judged: float
    idle_since: float
    memory: int | None = None
    orphan: bool | None = None
    """None until it was watched for a while."""
    revived: bool = False
    """Whether it has worked again after it was taken for an orphan: then it is somebody's."""

    def idles(self, cpu: float, now: float) -> bool | None:
        """Whether it has done nothing for long; None where it is too early to say anything new."""
        elapsed = now - self.judged
        worked = cpu - self.cpu >= _IDLE_SHARE * max(elapsed, _WATCHED_SECONDS)
        if not worked and elapsed < _WATCHED_SECONDS:
            return None
        self.judged, self.cpu = now, cpu
        if worked:
            self.idle_since = now
        return not worked and now - self.idle_since >= min(_LONG_SECONDS, now - self.since)

    def fields(self) -> dict[str, Any]:
        told = {"pid": self.pid, "name": self.name, "memory": self.memory, "before": self.before, "orphan": self.orphan}
        return {name: value for name, value in told.items() if value is not None}


class Neighbours:
    """The processes on one card."""

    def __init__(self) -> None:
        self.shows_ours = False
        """Whether the list has shown a process of the run: then its pids are ours to read."""
        self._known: dict[int, _Stranger] = {}
        self._looks = 0

    @property
    def strangers(self) -> int:
        return len(self._known)

    def changes(self, listed: Mapping[int, int | None], ours: frozenset[int], now: float) -> list[dict[str, Any]]:
        """What is new about the others since the last look."""
        self.shows_ours = self.shows_ours or any(pid in ours for pid in listed)
        self._looks += 1
        told = [change for pid in listed if pid not in ours for change in self._stranger(pid, listed[pid], now)]
        for pid in [pid for pid in self._known if pid not in listed or pid in ours]:
            told.append({**self._known.pop(pid).fields(), "left": True})
        return told

    def _stranger(self, pid: int, memory: int | None, now: float) -> Iterable[dict[str, Any]]:
        found = processes.stat(pid)
        known = self._known.get(pid)
        if found is None or (known is None and not self._believed(pid)):
            return
        if known is None or known.start_ticks != found.start_ticks:
            before = self._looks == 1
            known = _Stranger(pid, name(pid), found.start_ticks, now, found.cpu_seconds, before, now, now)
            self._known[pid] = known
            known.memory = memory
            yield known.fields()
        known.memory = memory
        idle = known.idles(found.cpu_seconds, now)
        if idle is None:
            return
        was = known.orphan
        known.revived = known.revived or (was is True and not idle)
        known.orphan = idle and not known.revived and without_parent(found.parent) and not is_service(pid)
        if known.orphan is not was:
            yield known.fields()

    def _believed(self, pid: int) -> bool:
        return len(self._known) < _MOST and (self.shows_ours or holds_card(pid))


def own(pid: int, run: Path) -> frozenset[int]:
    """The processes of a run: what its supervisors started, and whatever records into it."""
    return frozenset((os.getpid(), pid, *processes.descendants(pid), *processes.in_run(run)))


def holds_card(pid: int) -> bool:
    """Whether a process of our own namespace has a card open; False too where that may not be read."""
    try:
        return any(
            os.readlink(f"/proc/{pid}/fd/{number}").startswith("/dev/nvidia")
            for number in os.listdir(f"/proc/{pid}/fd")
        )
    except OSError:
        return False


def without_parent(parent: int) -> bool:
    return parent <= 1 or name(parent) in _REAPERS


def is_service(pid: int) -> bool:
    """Whether a process is one of a service of systemd, by its control group; False too where that may not be read."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    return any(line.endswith(".service") for line in lines)


def name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""
