"""The process table, read from /proc.

Enters: a pid. Leaves: its descendants, memory, state and the signals it handles; nothing, where there is
no /proc or no such process any more.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from brickprof.settings import RUN_VARIABLE

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Stat:
    """A line of /proc/PID/stat, as far as it is needed."""

    state: str
    parent: int
    group: int
    cpu_seconds: float
    start_ticks: int


def stat(pid: int) -> Stat | None:
    text = _read(f"/proc/{pid}/stat")
    # The name is in parentheses and may hold anything, parentheses included.
    words = text[text.rfind(")") + 2 :].split()
    if len(words) < 20:
        return None
    cpu = (int(words[11]) + int(words[12])) / _TICKS
    return Stat(words[0], int(words[1]), int(words[2]), cpu, int(words[19]))


def resident(pid: int) -> int:
    """Resident bytes of a process; 0 when it is gone."""
    words = _read(f"/proc/{pid}/statm").split()
    return int(words[1]) * _PAGE if len(words) > 1 else 0


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, parents before children."""
    children: dict[int, list[int]] = {}
    for other in _pids():
        found = stat(other)
        if found:
            children.setdefault(found.parent, []).append(other)
    below: list[int] = []
    waiting = [pid]
    while waiting:
        new = children.pop(waiting.pop(), [])
        below += new
        waiting += new
    return below


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal. Without one, a real-time signal would kill it."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def words(pid: int) -> tuple[str, ...]:
    """The command line of a process."""
    line = _read(f"/proc/{pid}/cmdline")
    return tuple(line.removesuffix("\0").split("\0")) if line else ()


def environment(pid: int) -> dict[str, str]:
    """The variables a process was started with."""
    entries = (entry.partition("=") for entry in _read(f"/proc/{pid}/environ").split("\0"))
    return {name: value for name, _, value in entries if name}


def belongs(pid: int, run: Path) -> bool:
    """Whether a process lives and records into ``run``. A pid alone may be somebody else's by now."""
    return environment(pid).get(RUN_VARIABLE) == str(run)


def in_run(run: Path) -> list[int]:
    """All processes of this machine that record into ``run``."""
    return [pid for pid in _pids() if belongs(pid, run)]


def ancestors(pid: int) -> Iterator[int]:
    """The parent of a process, its parent, and so on."""
    while pid > 1 and (found := stat(pid)):
        pid = found.parent
        yield pid


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and everything below it."""
    below = descendants(pid)
    for victim in (pid, *below):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(victim, signal.SIGKILL)


def boot_time() -> float:
    """When the machine started, in seconds since the epoch."""
    for line in _read("/proc/stat").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0


def seconds(ticks: int) -> float:
    return ticks / _TICKS


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as stream:
            return stream.read().decode("utf-8", "surrogateescape")
    except OSError:
        return ""
