"""A number over steps: what a rule reads instead of a list of events.

Enters: events of one kind, in order. Leaves: a ``Track``: steps, values and the ids of the records behind them,
as numpy arrays that rules slice and compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from brickprof.records import Event
from brickprof.rules.names import number

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Track:
    """``steps`` ascend (a step may stand twice: micro-batches); ``values`` may hold NaN and infinities."""

    steps: Ints
    values: Floats
    seqs: Ints
    rank: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    def evidence(self, place: int) -> str:
        """The id of the record behind one point."""
        return f"event:{int(self.seqs[place])}@{self.rank}"

    def evidences(self, places: Iterable[int], most: int = 4) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.evidence(place) for place in list(places)[:most]))

    def where(self, mask: npt.NDArray[np.bool_]) -> Track:
        return Track(self.steps[mask], self.values[mask], self.seqs[mask], self.rank)

    def until(self, step: int) -> Track:
        """The points of steps up to and with ``step``."""
        return self.where(self.steps <= step)

    def since(self, step: int) -> Track:
        return self.where(self.steps >= step)

    def finite(self) -> Track:
        return self.where(np.isfinite(self.values))

    def per_step(self) -> Track:
        """One point a step: the mean of its values (of its micro-batches, of its groups)."""
        if len(self) < 2 or bool(np.all(np.diff(self.steps) > 0)):
            return self
        steps, first, inverse, counts = np.unique(
            self.steps, return_index=True, return_inverse=True, return_counts=True
        )
        sums = np.zeros(len(steps))
        np.add.at(sums, inverse, self.values)
        return Track(steps, sums / counts, self.seqs[first], self.rank)

    def at(self, step: int) -> float | None:
        """The value of ``step``, the last one if there are several; None when it was not written."""
        place = int(np.searchsorted(self.steps, step, side="right")) - 1
        return float(self.values[place]) if place >= 0 and self.steps[place] == step else None


EMPTY = Track(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64))


def track(events: Sequence[Event], value: str | Callable[[Event], Any], rank: int = 0) -> Track:
    """``value`` (a field's name, or a function of the event) over steps; events without a number are left out."""
    told = [event.fields.get(value) for event in events] if isinstance(value, str) else list(map(value, events))
    steps, seqs = [event.step for event in events], [event.seq for event in events]
    return of_columns(steps, told, seqs, rank)


def of_columns(steps: list[int], told: list[Any], seqs: list[int], rank: int = 0) -> Track:
    """The same of columns that somebody has in hand; what is no number in ``told`` is left out."""
    if set(map(type, told)) != {float}:  # most often it is, and then nothing is looked at one by one
        rows = [
            (step, known, seq)
            for step, value, seq in zip(steps, told, seqs, strict=True)
            if (known := number(value)) is not None
        ]
        if not rows:
            return Track(EMPTY.steps, EMPTY.values, EMPTY.seqs, rank)
        steps, told, seqs = map(list, zip(*rows, strict=True))
    when, which = np.asarray(steps, np.int64), np.asarray(seqs, np.int64)
    values = np.asarray(told, np.float64)
    if len(when) and (when[1:] < when[:-1]).any():
        order = np.argsort(when, kind="stable")
        when, values, which = when[order], values[order], which[order]
    return Track(when, values, which, rank)
