"""The memory of a run: how it grew, and whether the kernel killed for it.

Enters: the pid of the script, once a second. Leaves: ``memory`` events in ``process.jsonl``, ever
sparser so that a week fits in a few thousand lines, the last minute in full when the script is killed,
and the kernel's count of kills.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from brickprof.journal import ProcessLog
from brickprof.launch import processes
from brickprof.launch.exits import OomKills

_FULL_SECONDS = 600.0
_TREE_SECONDS = 5.0
_LAST_POINTS = 60


class MemoryWatch:
    """Resident memory of the script and of everything below it."""

    def __init__(self, pid: int, log: ProcessLog, now: float) -> None:
        self.pid = pid
        self.peak = 0
        self.limit = memory_limit()
        self._log = log
        self._started = now
        self._next_line = now
        self._next_tree = now
        self._below: list[int] = []
        self._unwritten: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_LAST_POINTS)

    def tick(self, now: float, step: int = 0) -> None:
        rss = processes.resident(self.pid)
        if not rss:
            return
        if now >= self._next_tree:
            self._below = processes.descendants(self.pid)
            self._next_tree = now + _TREE_SECONDS
        below = [size for pid in self._below if (size := processes.resident(pid))]
        tree = rss + sum(below)
        self.peak = max(self.peak, tree)
        point = {
            "pid": self.pid, "rss": rss, "tree": tree, "peak": self.peak, "processes": 1 + len(below),
            "available": available(), "seconds": round(now - self._started, 3),
        }  # fmt: skip
        if now < self._next_line:
            self._unwritten.append((step, point))
            return
        self._unwritten.clear()
        self._log.event("memory", step, point)
        # One line a second for ten minutes, then one for every 1/600 of the time so far.
        self._next_line = now + max(0.9, (now - self._started) / _FULL_SECONDS)

    def flush(self) -> None:
        """The points since the last line: what a kill needs as evidence."""
        while self._unwritten:
            self._log.event("memory", *self._unwritten.popleft())


def oom_kills() -> OomKills:
    return OomKills(group=_group_kills(), machine=_counter(Path("/proc/vmstat"), "oom_kill"))


def memory_limit() -> int | None:
    """The limit of our own control group, in bytes; None when there is none below the machine's memory."""
    for folder, version in _groups():
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        text = _text(folder / name).strip()
        if text.isdigit() and int(text) < total():
            return int(text)
    return None


def available() -> int:
    return _meminfo("MemAvailable")


def total() -> int:
    return _meminfo("MemTotal")


def _meminfo(name: str) -> int:
    return _counter(Path("/proc/meminfo"), f"{name}:") * 1024


def _group_kills() -> int:
    kills = 0
    for folder, version in _groups():
        name = "memory.events" if version == 2 else "memory.oom_control"
        kills = max(kills, _counter(folder / name, "oom_kill"))
    return kills


def _groups() -> list[tuple[Path, int]]:
    """The control groups that account for this process's memory, newest kind first."""
    found: list[tuple[Path, int]] = []
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            roots = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")]
            found += [(root / path.lstrip("/"), 2) for root in roots]
        elif "memory" in controllers.split(","):
            # Inside a container the path may be that of the host, and only the mount's root is ours.
            root = Path("/sys/fs/cgroup/memory")
            folder = root / path.lstrip("/")
            found.append((folder if folder.is_dir() else root, 1))
    return found


def _counter(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return 0


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""
