"""The files of one run, made ready to be told as one.

Enters: the logs of one run. Leaves: fewer, or thinner ones: what only speaks in words (the errors of a job) is added to
what the numbers stand in, and of very many ranks each keeps fewer points. Where nothing but a perplexity is told its
logarithm is the loss.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from brickprof.logs.reading import names
from brickprof.logs.reading.gather import Log, Series, worth_keeping

_POINTS_OF_ALL = 64 * 1024
_FEWEST_POINTS = 256
_FEW_FILES = 4
_PERPLEXITY = frozenset({"ppl", "perplexity"})
_LEAST_PERPLEXITY = 1.0
"""That of a model which knows everything; below it the number is something else, its logarithm perhaps."""


def together(logs: Sequence[Log]) -> list[Log]:
    """The logs of one run, made ready to be one: what only errors speak of is added to what the numbers stand in."""
    logs = [_with_losses(log) for log in _by_their_reader(logs)]
    numbers = [log for log in logs if log.series]
    words = [log for log in logs if not log.series]
    if len(numbers) == 1 and words:
        return [_with_words(numbers[0], words)]
    most = max(_POINTS_OF_ALL // max(len(numbers), 1), _FEWEST_POINTS)
    return [_thinned(log, most) if len(numbers) > _FEW_FILES else log for log in numbers] or list(logs)


def _by_their_reader(logs: Sequence[Log]) -> list[Log]:
    """What a format knows about several files of one run: event files make one log, dumps of ranks are compared."""
    from brickprof.logs import readers

    joined = getattr(readers().get(logs[0].format), "joined", None) if len(logs) > 1 else None
    alike = [log for log in logs if log.format == logs[0].format]
    others = [log for log in logs if log.format != logs[0].format]
    return [*joined(alike), *others] if joined else list(logs)


def _with_losses(log: Log) -> Log:
    """A perplexity is e to the loss: where a log has no loss of its kind, that is one."""
    made: dict[str, Series] = {}
    for name, series in log.series.items():
        if series.role != "quality" or not _PERPLEXITY & frozenset(names.words(series.name)) or not len(series):
            continue
        role = "eval_loss" if series.kind or names.evaluates(series.name) else "loss"
        if log.of_role(role) or bool((series.values < _LEAST_PERPLEXITY).any()):
            continue
        with np.errstate(all="ignore"):
            made[f"ln {name}"] = replace(series, name=f"ln {series.name}", role=role, values=np.log(series.values))
    return replace(log, series={**log.series, **made}) if made else log


def _with_words(log: Log, others: Sequence[Log]) -> Log:
    """Errors come last: their lines are numbered behind those of the output."""
    end = max((int(series.lines.max()) for series in log.series.values() if len(series)), default=0)
    facts = list(log.facts)
    for other in others:
        last = max((fact.line for fact in facts), default=0)
        begin = max(end, last)
        named = {"file": os.path.basename(other.path)}
        facts += [replace(fact, line=fact.line + begin, fields={**fact.fields, **named}) for fact in other.facts]
    damage = [*log.damage, *(text for other in others for text in other.damage)]
    return replace(log, facts=facts, unread=log.unread + sum(other.unread for other in others), damage=damage)


def _thinned(log: Log, most: int) -> Log:
    clock = None if log.clock is None else _fewer(log.clock, most)
    return replace(log, series={name: _fewer(series, most) for name, series in log.series.items()}, clock=clock)


def _fewer(series: Series, most: int) -> Series:
    keep = worth_keeping(series.values, most)
    return replace(
        series, steps=series.steps[keep], values=series.values[keep], lines=series.lines[keep],
        attempts=series.attempts[keep],
    )  # fmt: skip
