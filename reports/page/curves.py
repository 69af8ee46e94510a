"""The numbers that a run has at every step, thinned for a picture.

Enters: a ``Run``. Leaves: series as plain data: steps, values, and apart from them the points that are not finite.
However long the run, a series keeps its highest, its lowest and its broken points, and every point near a finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from brickprof.logs.reading.gather import worth_keeping
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.records import Event
    from brickprof.run import Run

MOST_POINTS = 6_000
NEAR = 32
"""Steps around a finding of which nothing is left out."""
_DECADES = 2.0
_ORDER = ("loss", "evaluation loss", "|grad|", "|grad| before clipping", "learning rate", "scale", "seconds a step")
_MOST_OF_A_KIND = 4

Point = tuple[str, int, float]


def curves(run: Run, near: Sequence[int] = (), most: int = MOST_POINTS) -> list[dict[str, Any]]:
    """Each series that the run has, in the order in which they are shown."""
    points: dict[str, tuple[list[int], list[float]]] = {}
    for part in run.parts:
        for event in part.events:
            for name, step, value in _told(event):
                steps, values = points.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
    if run.meta.level != "log" and (timed := _step_times(run)) is not None:
        points["seconds a step"] = timed
    if "scale" not in points and "scale after the step" in points:
        points["scale"] = points["scale after the step"]
    found = (thinned(name, *points[name], near, most) for name in _ordered(points))
    return [series for series in found if len(series["steps"]) > 1 or series["odd"]]


def _ordered(names: Iterable[str]) -> list[str]:
    """The names that are shown; behind a colon stands what a log calls one of several."""
    known = list(names)
    return [name for kind in _ORDER for name in [n for n in known if n.partition(": ")[0] == kind][:_MOST_OF_A_KIND]]


def _told(event: Event) -> Iterator[Point]:
    tell = _TELLERS.get(event.kind)
    if tell is not None and event.step >= 0:
        for name, value in tell(event.fields):
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield name, event.step, float(value)


def _loss(fields: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    return (("loss", fields.get("value")), ("scale", fields.get("scale")))


def _grad(fields: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    return (("|grad|", fields.get("l2")),) if fields.get("point", "step") == "step" else ()


def _optimizer(fields: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    rates = fields.get("lr")
    known = [rate for rate in rates if isinstance(rate, int | float)] if isinstance(rates, list) else []
    return (("learning rate", max(known)),) if known else ()


def _evaluation(fields: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    name = fields.get("name")
    return ((f"evaluation loss: {clean(name, limit=40)}" if name else "evaluation loss", fields.get("loss")),)


def _metric(fields: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    if fields.get("role") != "step_seconds":
        return ()
    return ((f"seconds a step: {clean(fields.get('name', ''), limit=40)}", fields.get("value")),)


_TELLERS: dict[str, Callable[[dict[str, Any]], Iterable[tuple[str, Any]]]] = {
    "loss": _loss,
    "grad": _grad,
    "clip": lambda fields: (("|grad| before clipping", fields.get("norm")),),
    "optimizer": _optimizer,
    "evaluation": _evaluation,
    "scaler": lambda fields: (("scale after the step", fields.get("scale")),),
    "metric": _metric,
}


def _step_times(run: Run) -> tuple[list[int], list[float]] | None:
    """How long the steps took, from the moments of their losses on the first rank."""
    first: dict[int, int] = {}
    part = next((part for part in run.parts if part.rank >= 0), None)
    if part is None:
        return None
    for event in part.events:
        if event.kind == "loss" and event.time_ns:
            first.setdefault(event.step, event.time_ns)
    steps = sorted(first)
    pairs = [(b, (first[b] - first[a]) / 1e9) for a, b in pairwise(steps) if b == a + 1]
    whole = [(step, seconds) for step, seconds in pairs if seconds > 0]
    return ([step for step, _ in whole], [seconds for _, seconds in whole]) if whole else None


def thinned(
    name: str, steps: Sequence[int], values: Sequence[float], near: Sequence[int] = (), most: int = MOST_POINTS
) -> dict[str, Any]:
    """One series as data: the mean over ranks and micro-batches at each step, and of many steps those that matter."""
    places, inverse = np.unique(np.asarray(steps, np.int64), return_inverse=True)
    counts = np.bincount(inverse, minlength=len(places))
    with np.errstate(all="ignore"):
        means = np.bincount(inverse, np.asarray(values, np.float64), len(places)) / counts
    keep = np.zeros(len(places), dtype=bool)
    keep[worth_keeping(means, most)] = True
    for step in near:
        keep[np.searchsorted(places, step - NEAR) : np.searchsorted(places, step + NEAR, side="right")] = True
    kept_steps, kept = places[keep], means[keep]
    odd = [[int(step), _word(value)] for step, value in zip(kept_steps, kept, strict=True) if not math.isfinite(value)]
    return {
        "name": clean(name, limit=60),
        "steps": kept_steps.tolist(),
        "values": [float(f"{value:.6g}") if math.isfinite(value) else None for value in kept.tolist()],
        "odd": odd,
        "log": _spans_decades(kept),
        "of": len(places),
    }


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _spans_decades(values: Any) -> bool:
    finite = values[np.isfinite(values)]
    if not len(finite) or finite.min() <= 0:
        return False
    return bool(np.log10(finite.max() / finite.min()) > _DECADES)
