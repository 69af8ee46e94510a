"""Signals to probes, and what each probe costs.

Enters: signals of the session. Leaves: calls of the probes that listen. A probe that raises is counted, written
down, and switched off after a few times.

Two things keep this cheap where it matters, in steps that last milliseconds and find the caches full of
tensors: a probe is called only in steps that are looked at in its way, and the clock is read around every single
probe only in some steps, from which the rest is estimated.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from brickprof.capture.cadence import NOTHING, WAYS, Switches
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
        self._probes: list[Probe] = []
        self._tables: dict[tuple[bool, ...], Table] = {}
        self._active: Table = dict.fromkeys(SIGNALS, ())
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
        for cls in (cls for plugin in found for cls in _probe_classes(plugin.module)):
            if session.settings.level not in cls.levels:
                continue
            try:
                self._probes.append(cls(session))
            except Exception as error:
                self.failed(cls.name, error)
        self._active = _table(self._probes, set(WAYS))
        return list(found.notes)

    def begin(self, on: Switches) -> None:
        """A step begins: only probes that serve a way that is on are called in it."""
        key = (on.facts, on.blocks, on.guard, on.spans, on.full)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = _table(self._probes, {way for way in WAYS if getattr(on, way)})
        self._active = table
        self._busy_steps += on is not NOTHING
        timed = on is not NOTHING and self._busy_steps % _TIMED_EVERY == 0
        self._weight = 1 if on.full or on.deep else _TIMED_EVERY if timed else 0  # dear steps are all timed

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
            self._probes = [probe for probe in self._probes if probe.name != name]
            for table in (*self._tables.values(), self._active):
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


def _table(probes: list[Probe], ways: set[str]) -> Table:
    return {
        signal: tuple(
            (probe.name, getattr(probe, signal))
            for probe in probes
            if getattr(type(probe), signal) is not getattr(Probe, signal)
            and (signal in ALWAYS or signal in probe.every_step or not ways.isdisjoint(probe.ways))
        )
        for signal in SIGNALS
    }
