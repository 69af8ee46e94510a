"""Signals to probes, and what each probe costs.

Enters: signals of the session. Leaves: calls of the probes that listen. A probe that raises is counted, written
down, and switched off after a few times.

Two things keep this cheap where it matters, in steps that last milliseconds and find the caches full of
tensors: in quiet steps only the few listeners that cannot miss a step are called, and the clock is read around
every single probe only in some steps, from which the rest is estimated.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from brickprof.capture.probe import ALWAYS, SIGNALS, Probe
from brickprof.plugins import discover

if TYPE_CHECKING:
    from brickprof.capture.session import Session

_FAILURES = 3
_TIMED_EVERY = 7  # no power of two: the cadence's strides are
_counter = time.perf_counter_ns
Table = dict[str, tuple[tuple[str, Any], ...]]


class Dispatch:
    def __init__(self, fact: Callable[..., None]) -> None:
        self._fact = fact
        self.costs: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._looked: Table = dict.fromkeys(SIGNALS, ())
        self._quiet: Table = dict.fromkeys(SIGNALS, ())
        self._active = self._looked
        self._busy_steps = 0
        self._weight = 1
        """How many steps this one's costs stand for; 0 in steps that are not timed."""

    def load(self, session: Session) -> list[str]:
        """Makes the probes of the session's level; returns what was found wrong with third parties' ones."""
        try:
            found = discover("brickprof.probes")
        except Exception as error:
            self.failed("probes", error)
            return []
        probes = []
        for cls in (cls for plugin in found for cls in _probe_classes(plugin.module)):
            if session.settings.level not in cls.levels:
                continue
            try:
                probes.append(cls(session))
            except Exception as error:
                self.failed(cls.name, error)
        self._looked = _table(probes, every_step=False)
        self._quiet = _table(probes, every_step=True)
        self._active = self._looked
        return list(found.notes)

    def begin(self, *, quiet: bool, whole: bool) -> None:
        """A step begins: ``quiet`` ones reach few probes, ``whole`` ones (rare and dear) are always timed."""
        self._active = self._quiet if quiet else self._looked
        self._busy_steps += not quiet
        timed = not quiet and self._busy_steps % _TIMED_EVERY == 0
        self._weight = 1 if whole else _TIMED_EVERY if timed else 0

    def emit(self, signal: str, *args: Any) -> None:
        if self._weight:
            self._emit_timed(signal, args)
            return
        for name, method in self._active[signal]:
            try:
                method(*args)
            except Exception as error:
                self.failed(name, error)

    def _emit_timed(self, signal: str, args: tuple[Any, ...]) -> None:
        for name, method in self._active[signal]:
            start = _counter()
            try:
                method(*args)
            except Exception as error:
                self.failed(name, error)
            self.charge(name, _counter() - start)

    def charge(self, name: str, spent: int) -> None:
        """Books time on probe ``name``, in steps that are timed."""
        if self._weight:
            self.costs[name] = self.costs.get(name, 0) + spent * self._weight

    def failed(self, name: str, error: Exception) -> None:
        count = self._failures[name] = self._failures.get(name, 0) + 1
        if count > _FAILURES:
            return
        with contextlib.suppress(Exception):
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({os.path.basename(place.filename)}:{place.lineno})"
            self._fact("probe_off", {"probe": name, "error": text, "failures": count}, always=True)
        if count == _FAILURES:
            for table in (self._looked, self._quiet):
                for signal, listeners in table.items():
                    table[signal] = tuple(item for item in listeners if item[0] != name)

    def is_off(self, name: str) -> bool:
        return self._failures.get(name, 0) >= _FAILURES


def _probe_classes(module: ModuleType) -> list[type[Probe]]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Probe) and value.__module__ == module.__name__
    ]


def _table(probes: list[Probe], *, every_step: bool) -> Table:
    return {
        signal: tuple(
            (probe.name, getattr(probe, signal))
            for probe in probes
            if getattr(type(probe), signal) is not getattr(Probe, signal)
            and (not every_step or signal in ALWAYS or signal in probe.every_step)
        )
        for signal in SIGNALS
    }
