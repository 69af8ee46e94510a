"""How a run is: starting, running, silent, ended or killed.

Enters: the launch's own events, the ranks' last words, their pulses, and the process table of this machine. Leaves: a
``Condition``. Somebody else's process can be seen and not asked; one on another machine can only be silent.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass, field
from typing import Any

from brickprof.launch import processes
from brickprof.pulse import Beat
from brickprof.records import Event
from brickprof.reports.live.scene import ENDED, KILLED, RUNNING, SILENT, STARTING, Condition
from brickprof.text import clean

_QUIET_SECONDS = 10.0
_QUIET_STEPS = 8
"""A run whose steps take long is silent only after several of them."""
_GRACE = 2.0
"""Seconds that a supervisor has to say how its script ended."""
_FRESH = 10.0
_SLACK = 2.0


@dataclass(slots=True)
class Signs:
    """What tells of life and death in one run."""

    host: str = ""
    launched: dict[int, Event] = field(default_factory=dict)
    exited: dict[int, Event] = field(default_factory=dict)
    ranks: dict[int, Event] = field(default_factory=dict)
    """The ``run`` event of each rank: who records."""
    finished: dict[int, Event] = field(default_factory=dict)
    """The ``exit`` event of each rank."""
    raised: Event | None = None
    beats: dict[int, Beat] = field(default_factory=dict)
    written: float = 0.0
    """When a file of the run last grew, as unix seconds."""
    vanished: bool = False
    """Whether the run's folder is no more."""
    _gone_since: float | None = None

    def take(self, event: Event) -> None:
        if event.kind == "start":
            self.launched[_pid(event)] = event
            self.exited.pop(_pid(event), None)
        elif event.kind == "exited":
            self.exited[_pid(event)] = event
        elif event.kind == "run":
            self.ranks[event.rank] = event
            self.finished.pop(event.rank, None)
            if self.raised is not None and self.raised.rank == event.rank:  # started again
                self.raised = None
        elif event.kind == "exit":
            self.finished[event.rank] = event
        elif event.kind == "exception":
            self.raised = event

    def condition(self, now: float | None = None) -> Condition:
        now = time.time() if now is None else now
        told = self._told()
        if told is not None:
            return told
        if self.vanished:
            return Condition(ENDED, "its folder is gone")
        pids = self._pids()
        if not pids:
            fresh = now - self.written < _FRESH
            return Condition(STARTING) if fresh else Condition(ENDED, "nobody records into it")
        if self._here() and not any(alive(pid, self.last_sign) for pid in pids):
            self._gone_since = now if self._gone_since is None else self._gone_since
            if now - self._gone_since >= _GRACE or now - self.last_sign > _FRESH:
                gone = ", ".join(str(pid) for pid in sorted(pids)[:4])
                return Condition(KILLED, f"its process is gone without a word (pid {gone})")
        else:
            self._gone_since = None
        return self._of_the_living(now)

    def gone(self) -> frozenset[int]:
        """The ranks of this machine that recorded, and whose process is no more."""
        if not self._here():
            return frozenset()
        recording = {rank: beat for rank, beat in self.beats.items() if beat.state == "recording" and beat.pid > 0}
        return frozenset(
            rank for rank, beat in recording.items() if not alive(beat.pid, beat.beat_ns / 1e9 or time.time())
        )

    @property
    def last_sign(self) -> float:
        beats = (beat.beat_ns / 1e9 for beat in self.beats.values())
        started = (event.time_ns / 1e9 for event in (*self.launched.values(), *self.ranks.values()))
        return max((*beats, *started, self.written), default=0.0)

    def _told(self) -> Condition | None:
        """The end, where somebody wrote it down."""
        if self.launched:
            if not self.launched.keys() <= self.exited.keys():
                return None
            worst = max(self.exited.values(), key=lambda event: abs(_whole(event.fields.get("code"))))
            word = KILLED if worst.fields.get("signal") else ENDED
            return Condition(word, clean(worst.fields.get("text") or "", limit=200))
        done = {rank for rank, beat in self.beats.items() if beat.state == "finished"} | self.finished.keys()
        if not done or not (self.ranks.keys() | self.beats.keys()) <= done:
            return None
        if self.raised is not None:
            fields = self.raised.fields
            return Condition(ENDED, clean(f"{fields.get('type', '')}: {fields.get('message', '')}", limit=200))
        return Condition(ENDED, "the recording was closed")

    def _pids(self) -> set[int]:
        """Those who may still write."""
        ours = {_pid(event) for rank, event in self.ranks.items() if rank not in self.finished}
        ours |= {beat.pid for beat in self.beats.values() if beat.state != "finished"}
        return {pid for pid in (ours | self.launched.keys()) - self.exited.keys() if pid > 0}

    def _here(self) -> bool:
        hosts = {self.host, *(str(event.fields.get("host") or "") for event in self.ranks.values())} - {""}
        return hosts <= {platform.node()}

    def _of_the_living(self, now: float) -> Condition:
        quiet = now - self.last_sign
        step = max((beat.step_ns / 1e9 for beat in self.beats.values()), default=0.0)
        if quiet > max(_QUIET_SECONDS, _QUIET_STEPS * step):
            return Condition(SILENT, f"for {quiet:,.0f} s")
        if not any(beat.step > 0 for beat in self.beats.values()):
            return Condition(STARTING, "no step yet")
        return Condition(RUNNING)


def alive(pid: int, seen: float) -> bool:
    """Whether the process that was seen at ``seen`` (unix seconds) still lives, whoever owns it."""
    try:
        os.kill(pid, 0)  # asks, sends nothing
    except PermissionError:
        pass
    except (OSError, OverflowError, ValueError):
        return False
    found = processes.stat(pid)
    if found is None:
        return True
    began = processes.boot_time() + processes.seconds(found.start_ticks)
    return found.state not in "ZX" and began <= seen + _SLACK


def _pid(event: Event) -> int:
    return _whole(event.fields.get("pid"))


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
