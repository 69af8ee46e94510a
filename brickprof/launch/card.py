"""The cards that a run uses, watched from outside.

Enters: NVML, once a second (``card_seconds``; 0: never). Leaves: ``card`` events in ``process.jsonl``, of the devices
that the run uses and no others. What happens (an Xid, an ECC error, a throttle that sets in or ends, a stranger on the
card) is written at once; what is measured in ever longer averages, so that a week fits in a few thousand lines.

A thread does the asking: a driver that no longer answers stops the watching and nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from brickprof.journal import ProcessLog
from brickprof.launch import live, neighbours, nvml
from brickprof.launch.neighbours import Neighbours

_FULL_SECONDS = 600.0
_RARELY = 5.0
_EARLY = 120.0
_USES = 256 * 2**20
"""Memory that a card gains when a process begins to use it: a context and some tensors."""
_QUIET = frozenset({"idle", "application_clocks", "display_clocks", "sync_boost"})
"""Reasons for a lower clock that nobody has to know of."""
_OFTEN = 32
"""Changes of throttling that are written at once; after so many they come as counts, with the averages."""
_JOIN = 2.0


class CardWatch:
    """The thread that looks. Nothing at all happens where there is no card."""

    def __init__(self, pid: int, run: Path, interval: float, environment: Mapping[str, str] | None = None) -> None:
        self._pid = pid
        self._run = run
        self._interval = interval
        self._environment = dict(os.environ if environment is None else environment)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="brickprof-card", daemon=True)

    def start(self) -> None:
        if self._interval > 0:
            with suppress(RuntimeError):  # no thread to be had
                self._thread.start()

    def finish(self) -> None:
        """Writes what is left; a driver that does not answer is not waited for."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN)

    def _watch(self) -> None:
        with suppress(Exception):  # ours; neither the script nor its supervisor is to suffer for it
            library = nvml.library()
            try:
                self._look_on(Cards(library, self._environment, self._pid, self._run, self._interval))
            finally:
                library.nvmlShutdown()

    def _look_on(self, cards: Cards) -> None:
        while cards.devices and not self._done.wait(self._interval if cards.looked else 0.0):
            cards.look(time.monotonic(), live.step(self._run))
        cards.end(time.monotonic(), live.step(self._run))


class Cards:
    """Every device that the run may use, and what was seen of each."""

    def __init__(
        self, library: Any, environment: Mapping[str, str], pid: int, run: Path, interval: float = 1.0
    ) -> None:
        found = nvml.devices(library, environment)
        log, about = ProcessLog(run), {"driver": nvml.driver(library), "interval": interval}
        self.devices = [_Card(device, place, log, about) for place, device in enumerate(found)]
        self.looked = False
        self._pid = pid
        self._run = run
        self._began = 0.0
        self._next_close = 0.0
        self._ours: frozenset[int] = frozenset()

    def look(self, now: float, step: int) -> None:
        close = now >= self._next_close
        if close:
            self._next_close = now + self._until_next(now)
            self._ours = neighbours.own(self._pid, self._run)
        lists = any(card.neighbours.shows_ours for card in self.devices)
        for card in self.devices:
            card.look(now, step, self._ours if close else None, lists=lists)
        self.looked = True

    def end(self, now: float, step: int) -> None:
        """The script is gone: errors that came last, and the averages since the last line."""
        for card in self.devices:
            card.end(now, step)
            card.device.close()

    def _until_next(self, now: float) -> float:
        """Reading the process table costs something: often only until the run is found on a card, and not for long."""
        self._began = self._began or now
        found = any(card.used for card in self.devices)
        return _RARELY if found or now - self._began > _EARLY else 0.0


class _Card:
    def __init__(self, device: nvml.Device, ordinal: int, log: ProcessLog, about: dict[str, Any]) -> None:
        self.device = device
        self.neighbours = Neighbours()
        self.used = ""
        """How we know that the run uses it: ``listed`` by NVML, or its memory has ``grown``; "" where it does not."""
        self._where = {"device": device.index, "ordinal": ordinal}
        self._log = log
        self._about = about
        self._began: float | None = None
        self._memory_before: int | None = None
        self._ours: frozenset[int] = frozenset()
        """The run's processes, as of the last close look."""
        self._ecc: tuple[int | None, int | None] = (None, None)
        self._waiting: list[dict[str, Any]] = []
        self._changes = 0
        self._throttle: tuple[str, ...] = ()
        self._average = _Average()
        self._next_line = 0.0

    def look(self, now: float, step: int, ours: frozenset[int] | None, *, lists: bool) -> None:
        """``ours``: the run's processes, where it is time for a close look; ``lists``: whether NVML shows any."""
        seen = self.device.look()
        if self._began is None:
            self._began, self._next_line = now, now
            self._memory_before, self._ecc = seen.memory_used, self.device.ecc()
        self._hear_errors()
        if ours is not None:
            self._ours = ours
            self._look_closely(now, seen, ours, lists=lists)
        if self.used:
            self._measure(seen)
            self._tell(now, step)
        del self._waiting[:-64]

    def end(self, now: float, step: int) -> None:
        """An error is told even of a card that the run was not seen to use: it may have ended too soon."""
        self._hear_errors()
        self._count_errors()
        if not self.used:
            self._waiting = [each for each in self._waiting if each["what"] in ("xid", "lost")]
            if self._waiting:
                self._waiting.insert(0, {"what": "device", **self._facts(nvml.Look())})
        for each in self._waiting:
            self._write(step, each)
        if self._average.looks:
            self._line(now, step)

    def _hear_errors(self) -> None:
        self._waiting += [{"what": "xid", "xid": number} for number in self.device.xids()]
        if self.device.lost:
            self.device.lost = False
            self._waiting.append({"what": "lost"})

    def _look_closely(self, now: float, seen: nvml.Look, ours: frozenset[int], *, lists: bool) -> None:
        listed = self.device.processes() or {}
        self._waiting += [{"what": "process", **each} for each in self.neighbours.changes(listed, ours, now)]
        if not self.used:
            grown = (seen.memory_used or 0) - (self._memory_before or 0) >= _USES
            alone = not lists and not self.neighbours.strangers
            self.used = "listed" if ours & listed.keys() else "grown" if grown and alone else ""
            if self.used:
                self._waiting.insert(0, {"what": "device", **self._facts(seen)})
        self._count_errors()

    def _count_errors(self) -> None:
        before, self._ecc = self._ecc, self.device.ecc()
        rises = [_rise(*pair) for pair in zip(before, self._ecc, strict=True)]
        if any(rises):
            told = {"ecc_corrected": self._ecc[0], "ecc_uncorrected": self._ecc[1]}
            self._waiting.append({"what": "ecc", **told, "corrected": rises[0], "uncorrected": rises[1]})

    def _facts(self, seen: nvml.Look) -> dict[str, Any]:
        corrected, uncorrected = self._ecc
        found = {
            **self.device.about(), **self._about, "known_by": self.used, "memory_total": seen.memory_total,
            "power_limit": seen.power_limit, "ecc_corrected": corrected, "ecc_uncorrected": uncorrected,
            "memory_before": self._memory_before, "reads": seen.known(),
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    def _memory_of_ours(self) -> int | None:
        """What the run itself holds, where NVML tells that of each process: others may come and go."""
        listed = self.device.processes() if self.used == "listed" else None
        held = [listed[pid] for pid in self._ours & listed.keys()] if listed else []
        known = [size for size in held if size is not None]
        return sum(known) if known and len(known) == len(held) else None

    def _measure(self, seen: nvml.Look) -> None:
        self._average.add(seen, self._memory_of_ours())
        loud = tuple(word for word in seen.throttle or () if word not in _QUIET)
        if loud != self._throttle:
            self._changes += 1
            if self._changes <= _OFTEN:
                self._waiting.append({"what": "throttle", "throttle": list(loud), "was": list(self._throttle)})
            self._throttle = loud

    def _tell(self, now: float, step: int) -> None:
        for each in self._waiting:
            self._write(step, each)
        self._waiting.clear()
        if now >= self._next_line:
            self._line(now, step)

    def _line(self, now: float, step: int) -> None:
        elapsed = now - (self._began or now)
        self._write(step, {"what": "sample", "seconds": round(elapsed, 3), **self._average.fields()})
        self._average = _Average()
        # One line for every look in the first ten minutes, then one for every 1/600 of the time so far.
        self._next_line = now + elapsed / _FULL_SECONDS

    def _write(self, step: int, fields: dict[str, Any]) -> None:
        self._log.event("card", step, {**self._where, **fields})


class _Average:
    """Several looks as one line."""

    def __init__(self) -> None:
        self.looks = 0
        self._sums: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._throttled: Counter[str] = Counter()
        self._last = nvml.Look()
        self._peak = 0
        self._ours: int | None = None

    def add(self, seen: nvml.Look, ours: int | None) -> None:
        self.looks += 1
        self._last, self._ours = seen, ours
        self._peak = max(self._peak, seen.memory_used or 0)
        self._throttled.update(seen.throttle or ())
        for name in ("utilisation", "power", "sm_clock", "memory_clock", "temperature"):
            value = getattr(seen, name)
            if value is not None:
                self._sums[name] += value
                self._counts[name] += 1

    def fields(self) -> dict[str, Any]:
        means = {name: round(self._sums[name] / count, 4) for name, count in self._counts.items()}
        last = self._last
        sizes = {
            "memory_used": last.memory_used, "memory_ours": self._ours, "memory_peak": self._peak or None,
            "memory_total": last.memory_total,
        }  # fmt: skip
        told = {**means, **sizes, "power_limit": last.power_limit}
        known = {name: value for name, value in told.items() if value is not None}
        throttle = {} if last.throttle is None else {"throttle": list(last.throttle)}
        return {"looks": self.looks, **known, **throttle, "throttled": dict(self._throttled)}


def _rise(before: int | None, after: int | None) -> int:
    return max(0, after - before) if before is not None and after is not None else 0
