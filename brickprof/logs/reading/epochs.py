"""Steps that begin anew in each epoch.

Enters: a ``Log`` whose steps go back now and then. Leaves: the same log; where the epoch went on as the steps went
back, that was no other attempt but a counter of the steps within an epoch, and the steps are counted on. So they are in
a last epoch that the log ends within: its rows have other names than those of whole ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from brickprof.logs.reading.model import Whole

if TYPE_CHECKING:
    from brickprof.logs.reading.gather import Log, Series
    from brickprof.logs.reading.order import Attempt


def count_on(log: Log) -> Log:
    epochs = _epochs(log)
    if epochs is not None and not log.attempts:
        _cut_short(log, epochs)
    if not log.attempts or epochs is None:
        return log
    within = [attempt for attempt in log.attempts if _went_on(epochs, attempt.line)]
    if not within:
        return log
    lines = np.array([attempt.line for attempt in within], dtype=np.int64)
    before = np.cumsum([attempt.stopped_at + (attempt.goes_on_at == 0) for attempt in within])
    passed = np.concatenate([[0], before]).astype(np.int64)
    log.attempts = [
        _moved(attempt, number, lines, passed)
        for number, attempt in enumerate((each for each in log.attempts if each not in within), 1)
    ]
    begins = np.array([attempt.line for attempt in log.attempts], dtype=np.int64)
    for series in _all(log):
        series.steps = series.steps + passed[np.searchsorted(lines, series.lines, side="right")]
        series.attempts = np.searchsorted(begins, series.lines, side="right").astype(np.int64)
    return log


def _all(log: Log) -> list[Series]:
    return [*log.series.values(), *([log.clock] if log.clock is not None else [])]


def _cut_short(log: Log, epochs: Series) -> None:
    """The rows of an unfinished last epoch, behind those of the whole ones."""
    rises = np.flatnonzero(epochs.values[1:] > epochs.values[:-1]) + 1
    if not len(rises) or not log.of_role("total_steps"):
        return
    last = int(rises[-1])
    stopped = int(epochs.steps[:last].max())
    if last < 2 or int(epochs.steps[last:].max()) >= stopped or not _whole_epochs(epochs, last, log):
        return
    for series in _all(log):
        series.steps = series.steps + np.where(series.lines >= epochs.lines[last], stopped, 0)


def _whole_epochs(epochs: Series, last: int, log: Log) -> bool:
    """Whether the steps before were counted on, by as many for each epoch as the unfinished one was to have."""
    total = max((float(series.values[-1]) for series in log.of_role("total_steps") if len(series)), default=0.0)
    before = np.unique(epochs.steps[:last])
    return bool(len(before)) and bool(np.all(before % total == 0)) if total >= 1 else False


def _epochs(log: Log) -> Series | None:
    """The epochs of the training's own rows, in the order of the file."""
    told = [series for series in log.of_role("epoch") if not series.rank and len(series) > 1]
    return max((series for series in told if (np.diff(series.lines) > 0).all()), key=len, default=None)


def _went_on(epochs: Series, line: int) -> bool:
    """Whether the epoch is a later one from this line on."""
    place = int(np.searchsorted(epochs.lines, line))
    return 0 < place < len(epochs) and bool(epochs.values[place] > epochs.values[place - 1])


def _moved(attempt: Attempt, number: int, lines: Whole, passed: Whole) -> Attempt:
    stopped = int(passed[np.searchsorted(lines, attempt.line, side="left")])
    return replace(
        attempt, number=number, stopped_at=attempt.stopped_at + stopped, goes_on_at=attempt.goes_on_at + stopped
    )
