"""What a tracking server has stored of one run, as rows.

Enters: for each metric its values with their times and steps, and how the run ended. Leaves: rows in the order of time:
values of one step that came one behind the other are one row. A metric whose step was never given is counted by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brickprof.logs.reading import rows
from brickprof.logs.reading.model import Fact, Floats, Item, block

_OF_THE_MACHINE = "system/"
_ENDED = {"3": "FINISHED", "4": "FAILED", "5": "KILLED"}


@dataclass(slots=True)
class Metric:
    times: Floats
    """Milliseconds since 1970."""
    steps: Floats
    values: Floats


@dataclass(slots=True)
class Stored:
    metrics: dict[str, Metric] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    status: str = ""


def items(stored: Stored) -> Iterator[Item]:
    if stored.params:
        yield Fact("setting", 1, {"values": stored.params})
    counted = {name: metric for name, metric in stored.metrics.items() if _has_steps(metric)}
    measured = {name: metric for name, metric in counted.items() if name.startswith(_OF_THE_MACHINE)}
    yield from _joined({name: metric for name, metric in counted.items() if name not in measured}, "")
    yield from _joined(measured, "machine")
    for name, metric in stored.metrics.items():
        if name not in counted and len(metric.values):
            yield block(np.arange(1, len(metric.values) + 1), {name: metric.values}, kind=name)
    yield from _end(stored.status)


def _has_steps(metric: Metric) -> bool:
    return len(metric.steps) == 1 or bool(len(metric.steps) and (metric.steps != metric.steps[0]).any())


def _joined(metrics: Mapping[str, Metric], kind: str) -> Iterator[Item]:
    """Metrics side by side."""
    if not metrics:
        return
    names = list(metrics)
    which = np.concatenate([np.full(len(metric.values), place) for place, metric in enumerate(metrics.values())])
    times, steps, values = (
        np.concatenate([getattr(metric, column) for metric in metrics.values()])
        for column in ("times", "steps", "values")
    )
    found: list[dict[str, float]] = []
    for place in np.argsort(times, kind="stable").tolist():
        name, step = names[int(which[place])], float(steps[place])
        if not found or found[-1]["step"] != step or name in found[-1]:
            found.append({"step": step})
        found[-1][name] = float(values[place])
    yield from rows.blocks(range(1, len(found) + 1), found, kind)


def _end(status: str) -> Iterator[Fact]:
    status = _ENDED.get(status, status)
    if status == "FINISHED":
        yield Fact("finished", 1, {"text": "MLflow: the run is FINISHED"})
    elif status == "KILLED":
        yield Fact("ended", 1, {"how": "cancelled", "text": "MLflow: the run was KILLED"})
    elif status == "FAILED":
        yield Fact("note", 1, {"text": "MLflow: the run has FAILED"})
