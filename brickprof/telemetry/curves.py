"""The numbers that a run has at every step, under the names that other tools group by.

Enters: a part of a run. Leaves: what its events tell, one number after another, or gathered by step. Numbers of a log
keep the names that the log gives them.

    train/loss  train/lr  train/grad_norm  train/grad_norm_unclipped  train/loss_scale  eval/loss
    time/step_seconds  time/loader_wait_seconds  memory/rss ...  gpu0/utilisation  gpu0/power ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from brickprof.logs.reading.names import role
from brickprof.records import Event
from brickprof.text import clean

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from brickprof.run.parts import Part

    Floats = NDArray[np.float64]
    Wholes = NDArray[np.int64]

LOSS, RATE, NORM, UNCLIPPED = "train/loss", "train/lr", "train/grad_norm", "train/grad_norm_unclipped"
SCALE, SCALE_AFTER, EVALUATION = "train/loss_scale", "train/loss_scale_after", "eval/loss"
SECONDS, WAITED = "time/step_seconds", "time/loader_wait_seconds"
_FIRST = ("loss", "eval_loss", "quality", "lr", "grad_norm", "scale", "step_seconds", "throughput", "memory")
_CARD = ("utilisation", "power", "sm_clock", "memory_clock", "temperature", "memory_used", "memory_peak")
_MEMORY = ("rss", "tree", "peak", "available", "device_allocated", "device_reserved", "device_peak")
_MOST_CURVES = 1000

Named = Iterable[tuple[str, Any]]


class Told(NamedTuple):
    name: str
    step: int
    time_ns: int
    value: float


@dataclass(frozen=True, slots=True)
class Curve:
    """One number by step: the mean of what was told in a step, the least and the most, and when it was told first."""

    steps: Wholes
    times: Wholes
    means: Floats
    lows: Floats
    highs: Floats


def told(part: Part) -> Iterator[Told]:
    """Every number that the events of ``part`` tell, in the order in which they happened."""
    last: tuple[int, int] | None = None
    for event in sorted(part.events, key=lambda event: event.moment):
        for name, value in _tell(event):
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield Told(name, event.step, event.time_ns, _measured(value))
        if event.kind == "loss" and "line" not in event.fields and (last is None or event.step > last[0]):
            if last is not None and event.step == last[0] + 1 and event.time_ns > last[1]:
                yield Told(SECONDS, event.step, event.time_ns, (event.time_ns - last[1]) / 1e9)
            last = event.step, event.time_ns


def _measured(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number that no float holds
        return math.inf if value > 0 else -math.inf


def by_step(part: Part) -> dict[str, Curve]:
    """The curves of one part of a run, by name."""
    points: dict[str, list[Told]] = {}
    for point in told(part):
        known = points.get(point.name)
        if known is not None:
            known.append(point)
        elif len(points) < _MOST_CURVES:
            points[point.name] = [point]
    return {name: _curve(points[name]) for name in sorted(points, key=_place)}


def _place(name: str) -> tuple[int, str]:
    """What people look at first comes first, by what the name says it is."""
    known = role(name)
    return (_FIRST.index(known) if known in _FIRST else len(_FIRST), name)


def _curve(points: list[Told]) -> Curve:
    import numpy as np

    steps = np.array([point.step for point in points], np.int64)
    order = np.argsort(steps, kind="stable")
    values = np.array([point.value for point in points], np.float64)[order]
    times = np.array([point.time_ns for point in points], np.int64)[order]
    places, first, counts = np.unique(steps[order], return_index=True, return_counts=True)
    with np.errstate(all="ignore"):
        means = np.add.reduceat(values, first) / counts
    return Curve(places, times[first], means, np.minimum.reduceat(values, first), np.maximum.reduceat(values, first))


def _tell(event: Event) -> Iterator[tuple[str, Any]]:
    tell = _TELLERS.get(event.kind)
    if tell is None or event.step < 0:
        return
    given = event.fields.get("name")
    for name, value in tell(event.fields):
        yield (clean(given, limit=200) or name) if isinstance(given, str) else name, value


def _loss(fields: dict[str, Any]) -> Named:
    return ((LOSS, fields.get("value")), (SCALE, None if "name" in fields else fields.get("scale")))


def _grad(fields: dict[str, Any]) -> Named:
    if fields.get("point", "step") != "step":
        return ()
    return ((NORM, _broken_norm(fields) if fields.get("l2") is None else fields["l2"]),)


def _broken_norm(fields: dict[str, Any]) -> float | None:
    """The norm of gradients that are not finite, where it was not written down."""
    broken = fields.get("nonfinite")
    if not isinstance(broken, list) or not broken:
        return None
    return math.nan if any(isinstance(row, dict) and row.get("nan") for row in broken) else math.inf


def _optimizer(fields: dict[str, Any]) -> Named:
    rates, which = fields.get("lr"), fields.get("optimizer") or 0
    groups = enumerate(rates if isinstance(rates, list) else [rates])
    return ((RATE if (which, group) == (0, 0) else f"{RATE}/{clean(which)}.{group}", rate) for group, rate in groups)


def _memory(fields: dict[str, Any]) -> Named:
    if "name" in fields:
        return (("memory", fields.get("reported")),)
    return ((f"memory/{name}", fields.get(name)) for name in _MEMORY)


def _batch(fields: dict[str, Any]) -> Named:
    waited = fields.get("wait_ns")
    return ((WAITED, waited / 1e9),) if isinstance(waited, int | float) else ()


def _card(fields: dict[str, Any]) -> Named:
    if fields.get("what") != "sample":
        return ()
    which = fields.get("ordinal", fields.get("device"))
    return ((f"gpu{clean(which, limit=20)}/{name}", fields.get(name)) for name in _CARD)


_TELLERS: dict[str, Callable[[dict[str, Any]], Named]] = {
    "loss": _loss,
    "grad": _grad,
    "clip": lambda fields: ((UNCLIPPED, fields.get("norm")),),
    "optimizer": _optimizer,
    "evaluation": lambda fields: ((EVALUATION, fields.get("loss")),),
    "scaler": lambda fields: ((SCALE_AFTER, fields.get("scale")),),
    "memory": _memory,
    "batch": _batch,
    "card": _card,
    "metric": lambda fields: (("metric", fields.get("value")),),
}
