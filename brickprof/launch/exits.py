"""How a process ended, in words.

Enters: what ``wait`` returned, and what the kernel counted of out-of-memory kills. Leaves: an ``Exit``:
the code a shell would see (128 + n for signal n), its class, and a sentence.

    0      ok                    130  interrupted (SIGINT)        136  arithmetic error (SIGFPE)
    1      failed                131  quit (SIGQUIT)              137  killed, or out_of_memory (SIGKILL)
    2      usage                 132  illegal instruction         139  segmentation fault (SIGSEGV)
    other  failed                134  aborted (SIGABRT)           143  terminated (SIGTERM)
    129    hung up (SIGHUP)      135  bus error (SIGBUS)          128+n  signalled
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

_CLASSES: dict[int, tuple[str, str]] = {
    signal.SIGHUP: ("hung_up", "its terminal closed"),
    signal.SIGINT: ("interrupted", "interrupted"),
    signal.SIGQUIT: ("quit", "asked to quit"),
    signal.SIGILL: ("illegal_instruction", "illegal instruction"),
    signal.SIGABRT: ("aborted", "it aborted itself"),
    signal.SIGBUS: ("bus_error", "bus error"),
    signal.SIGFPE: ("arithmetic_error", "arithmetic error"),
    signal.SIGKILL: ("killed", "killed"),
    signal.SIGSEGV: ("segmentation_fault", "segmentation fault"),
    signal.SIGTERM: ("terminated", "asked to stop"),
}


@dataclass(frozen=True, slots=True)
class Exit:
    code: int
    kind: str
    text: str
    signal: int | None = None

    def fields(self) -> dict[str, Any]:
        name = signal_name(self.signal) if self.signal else ""
        return {"code": self.code, "class": self.kind, "text": self.text, "signal": self.signal, "name": name}


@dataclass(frozen=True, slots=True)
class OomKills:
    """Processes that the kernel killed for memory: in our own control group, and on the whole machine."""

    group: int = 0
    machine: int = 0

    def __sub__(self, before: OomKills) -> OomKills:
        return OomKills(max(0, self.group - before.group), max(0, self.machine - before.machine))


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def classify(status: int, kills: OomKills | None = None, *, ours: bool = False) -> Exit:
    """The exit behind a wait status. ``ours``: the supervisor itself sent the SIGKILL, being asked twice."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return _exited(code)
    number = -code
    name = signal_name(number)
    if number == signal.SIGKILL and not ours and kills and (kills.group or kills.machine):
        sure = "out of memory" if kills.group else "probably out of memory"
        return Exit(128 + number, "out_of_memory", f"killed by {name}: {sure}", number)
    if number == signal.SIGKILL and ours:
        text = "killed by brickprof, which was asked twice to stop it"
        return Exit(128 + number, "interrupted", text, number)
    kind, words = _CLASSES.get(number, ("signalled", ""))
    text = f"ended by {name}: {words}" if words else f"ended by {name}"
    return Exit(128 + number, kind, text, number)


def _exited(code: int) -> Exit:
    if code == 0:
        return Exit(0, "ok", "the script exited 0")
    kind = "usage" if code == 2 else "failed"
    return Exit(code, kind, f"the script exited {code}")
