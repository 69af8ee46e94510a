"""A few steps of a run, as a run.

Enters: a run and a window of steps. Leaves: a ``Run`` that holds what belongs to these steps and what a run is known
by: its names, its ranks, its beginning. So whatever reads a run can be given a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from brickprof.errors import NothingToJudge, UsageError
from brickprof.journal import PROCESS_RANK
from brickprof.records import Event
from brickprof.run import Run
from brickprof.run.names import Names
from brickprof.run.parts import Part, time_of
from brickprof.text import clean

_ALWAYS = frozenset({"run", "start", "brick", "tensor", "model", "log", "config"})
_FORM = re.compile(r"(\d{1,15})?(:)?(\d{1,15})?")


class Window(Run):
    """Some steps of a run; ``whole`` is the run itself."""

    whole: Run


def steps(typed: str) -> range:
    """``100:200``, ``100:``, ``:50`` or ``7`` as steps; both ends are in it."""
    match = _FORM.fullmatch(typed.strip())
    if match is None or not (match[1] or match[3]):
        raise UsageError(f"--steps is {clean(typed)!r}.", "It is a window such as 100:200, 100:, :50 or 7.")
    first = int(match[1] or 0)
    last = int(match[3]) if match[3] else 10**15 if match[2] else first
    if last < first:
        raise UsageError(f"--steps is {clean(typed)}, which holds no step.", f"Did you mean {last}:{first}?")
    return range(first, last + 1)


def within(run: Run, window: range) -> Window:
    """What ``run`` tells of the steps in ``window``; of the launch itself, what it told while they went on."""
    parts = {part.rank: _Cut(part, window) for part in run.parts if part.rank != PROCESS_RANK}
    times = [moment for part in parts.values() for moment in part.times()]
    if not times:
        raise NothingToJudge(f"Nothing was recorded of the steps {_said(window)}.", f"The run has {run.steps:,}.")
    for part in run.parts:
        if part.rank == PROCESS_RANK:
            parts[part.rank] = _Cut(part, range(min(times), max(times) + 1), by_time=True)
    found = Window(run.meta, dict(sorted(parts.items())), run.path)
    found.whole = run
    return found


def _said(window: range) -> str:
    return f"from {window.start:,} on" if window.stop > 10**15 else f"{window.start:,} to {window.stop - 1:,}"


class _Cut(Part):
    """What one rank told within a window, of steps or of moments."""

    def __init__(self, part: Part, window: range, *, by_time: bool = False) -> None:
        super().__init__(part.rank, lambda: (self._kept, part.written[1]), self._table)
        self._part = part
        self._window = window
        self._kept = [event for event in part.events if event.kind in _ALWAYS or self._holds(event, by_time)]

    def _holds(self, event: Event, by_time: bool) -> bool:
        return (event.time_ns if by_time else event.step) in self._window

    @property
    def names(self) -> Names:
        return self._part.names

    def times(self) -> Iterable[int]:
        """When the window began and ended here; nothing where it is empty."""
        import pyarrow.compute as pc

        found = [time_of(event) for event in self._kept if event.kind not in _ALWAYS]
        table = self.spans[0]
        if table.num_rows:
            found += [pc.min(table["start_ns"]).as_py(), pc.max(table["end_ns"]).as_py()]
        return found

    def _table(self, name: str) -> tuple[Any, Any]:
        import pyarrow.compute as pc

        table, damage = self._part.spans if name == "spans" else self._part.samples
        first, last = self._window.start, self._window.stop - 1
        inside = pc.and_(pc.greater_equal(table["step"], first), pc.less_equal(table["step"], last))
        return table.filter(inside), damage
