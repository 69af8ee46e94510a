"""Which step each row of a text is of.

Enters: the rows of a chunk, by the templates of their lines. Leaves: the same rows, each with its step. A row that has
none of its own is of the step that the log spoke of last: in another line, or in a progress bar. Steps that begin anew
with each epoch are counted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brickprof.logs.reading import names
from brickprof.logs.reading.model import Floats, Whole
from brickprof.logs.reading.naming import Shape


@dataclass(slots=True)
class Template:
    gaps: tuple[str, ...]
    shape: Shape | None
    kind: str = ""
    seen: int = 0
    cut_off: bool = False
    needs_two: bool = False
    only_counts: bool = False
    """It draws a bar or heads an epoch, and measures nothing."""

    @property
    def is_row(self) -> bool:
        sure = self.seen > 1 or not self.needs_two
        return self.shape is not None and not self.cut_off and not self.only_counts and sure

    @property
    def tells(self) -> bool:
        return self.is_row or self.only_counts


@dataclass(slots=True)
class Rows:
    """Lines of one template in one chunk."""

    template: Template
    index: Whole
    lines: Whole
    values: dict[str, Floats]
    ranks: Whole | None
    step: str | None
    weak: bool
    """The step is that of a progress bar."""


@dataclass(slots=True)
class _Epochs:
    """Steps that begin anew with each epoch."""

    first: float = np.nan
    period: float = 0.0
    anew: bool = False
    last: tuple[float, float] = (np.nan, np.nan)


def _stands_still(steps: Floats, rows: list[Rows]) -> bool:
    """A bar that was drawn once, or never moves, while row comes after row, does not count them."""
    waiting = sum(len(part.index) for part in rows if part.step is None and part.template.is_row)
    return waiting > 2 and len(steps) > 0 and float(steps.min()) == float(steps.max())


def _always_full(part: Rows) -> bool:
    """Row after row behind a bar that is full, and no epoch that would tell them apart: the rows are what counts."""
    steps, total = part.values[part.step or "step"], part.values.get("total_steps")
    if total is None or len(steps) < 3 or any(names.role(name) == "epoch" for name in part.values):
        return False
    return bool((steps == total).all()) and float(total.min()) == float(total.max())


class Counting:
    """Gives each row its step."""

    def __init__(self) -> None:
        self._step: float | None = None
        self._bar_step: float | None = None
        self._bar_total: float | None = None
        self._epoch: float | None = None
        self._spoken = False
        """Some line says its step in words: bars are not asked."""
        self._epochs: dict[int, _Epochs] = {}

    def count(self, rows: list[Rows]) -> None:
        self._fill_epochs(rows)
        for part in rows:
            if part.step is not None and _always_full(part):
                part.values = {name: column for name, column in part.values.items() if name != part.step}
                part.step = None
            if part.step is not None:
                self._count_on(part)
        said = [part for part in rows if part.step is not None and not part.weak and part.template.is_row]
        self._spoken = self._spoken or bool(said)
        sources = said if self._spoken else [part for part in rows if part.step is None and self._is_bar(part)]
        sources = sources if self._spoken else [*sources, *(part for part in rows if part.weak and part.step)]
        places, steps = _in_order([(part.index, part.values[part.step or "step"]) for part in sources])
        if not self._spoken and len(steps):
            places, steps = self._of_main_bar(sources, places, steps)
        before = self._step if self._spoken else self._bar_step
        if not self._spoken and before is None and _stands_still(steps, rows):
            places, steps = places[:0], steps[:0]
        if len(steps) or before is not None:
            for part in rows:
                if part.step is None and part.template.is_row:
                    part.values = {"step": _carried(part.index, places, steps, before), **part.values}
        if len(steps):
            self._step = self._bar_step = float(steps[-1])
        for part in rows:
            if not part.template.is_row:
                part.values = {}

    def _is_bar(self, part: Rows) -> bool:
        return not part.template.is_row and "step" in part.values

    def _of_main_bar(self, sources: list[Rows], places: Whole, steps: Floats) -> tuple[Whole, Floats]:
        """Only the bar of the training counts: the first that was drawn, by how long it is."""
        bars = [part for part in sources if "total_steps" in part.values]
        _, totals = _in_order([(part.index, part.values["total_steps"]) for part in bars])
        if len(totals) != len(steps):
            return places, steps
        if self._bar_total is None:
            self._bar_total = float(totals[0])
        own = totals == self._bar_total
        return places[own], steps[own]

    def _fill_epochs(self, rows: list[Rows]) -> None:
        """``Epoch 3/10`` on a line of its own is the epoch of the lines below."""
        heads = [part for part in rows if not part.template.is_row and "step" not in part.values and part.values]
        places, epochs = _in_order([(part.index, next(iter(part.values.values()))) for part in heads])
        if len(epochs) or self._epoch is not None:
            for part in rows:
                own = part.template.is_row and part.step is not None and "total_steps" in part.values
                if own and not any(names.role(name) == "epoch" for name in part.values):
                    part.values = {**part.values, "epoch": _carried(part.index, places, epochs, self._epoch)}
        if len(epochs):
            self._epoch = float(epochs[-1])

    def _count_on(self, part: Rows) -> None:
        epoch = next((name for name in part.values if names.role(name) == "epoch"), None)
        if epoch is None or part.step is None or not len(part.index):
            return
        known = self._epochs.setdefault(id(part.template), _Epochs())
        epochs, steps = part.values[epoch], part.values[part.step]
        if not (np.isfinite(epochs).all() and (epochs == np.floor(epochs)).all()):
            return
        if np.isnan(known.first):
            known.first = float(epochs[0])
        up = np.diff(epochs, prepend=known.last[0]) > 0
        no_further = np.diff(steps, prepend=known.last[1]) <= 0
        known.anew = known.anew or bool((up & no_further).any())
        known.last = float(epochs[-1]), float(steps[-1])
        total = part.values.get("total_steps")
        period = total if total is not None else max(known.period, float(np.nanmax(steps)) + 1)
        known.period = float(np.max(period))
        if known.anew:
            part.values[part.step] = (epochs - known.first) * period + steps
            part.values.pop("total_steps", None)


def _in_order(parts: Sequence[tuple[Whole, Floats]]) -> tuple[Whole, Floats]:
    if not parts:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    places = np.concatenate([place for place, _ in parts])
    order = np.argsort(places, kind="stable")
    return places[order], np.concatenate([values for _, values in parts])[order]


def _carried(index: Whole, places: Whole, values: Floats, before: float | None) -> Floats:
    """What was said last before each place; before anything was said, what had been, or where it begins."""
    if not len(values):
        return np.full(len(index), np.nan if before is None else before)
    if before is None:
        before = 0.0 if values[0] <= 1 else float(values[0])
    at = np.searchsorted(places, index) - 1
    return np.where(at >= 0, values[np.maximum(at, 0)], before)
