"""The numbers that a run has at every step, thinned for a picture.

Enters: a ``Run``. Leaves: series as plain data: steps, values, and apart from them the points that are not finite.
However long the run, a series keeps its highest, its lowest and its broken points, and every point near a finding.
Where several ranks tell different numbers, the mean has theirs beside it: a line each for few, a band for many.
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
_FEW_RANKS, _STRETCHES = 8, 500
LAST_STEP = 2**53
"""Beyond it a page could not tell one step from the next."""

Points = tuple[list[int], list[float], list[int]]


def curves(
    run: Run, near: Sequence[int] = (), most: int = MOST_POINTS, points: dict[str, Points] | None = None
) -> list[dict[str, Any]]:
    """Each series that the run has, in the order in which they are shown; ``points`` where they are at hand."""
    points = dict(told_by_step(run) if points is None else points)
    if "scale" not in points and "scale after the step" in points:
        points["scale"] = points["scale after the step"]
    found = (thinned(name, *points[name][:2], near, most, points[name][2]) for name in _ordered(points))
    return [series for series in found if len(series["steps"]) > 1 or series["odd"]]


def told_by_step(run: Run) -> dict[str, Points]:
    """Every number that events tell, by its name: steps, values, and the ranks that told them."""
    points: dict[str, Points] = {}
    for part in run.parts:
        for event in part.events:
            if event.kind in _TELLERS and 0 <= event.step <= LAST_STEP:
                for name, value in _told(event):
                    _add(points, name, event.step, value, part.rank)
    if run.meta.level != "log":
        for part in run.parts:
            for step, seconds in step_times(part.events) if part.rank >= 0 else ():
                _add(points, "seconds a step", step, seconds, part.rank)
    return points


def _add(points: dict[str, Points], name: str, step: int, value: float, rank: int) -> None:
    told = points.get(name)
    if told is None:
        told = points[name] = ([], [], [])
    told[0].append(step)
    told[1].append(value)
    told[2].append(rank)


def _ordered(names: Iterable[str]) -> list[str]:
    """The names that are shown; behind a colon stands what a log calls one of several."""
    known = list(names)
    return [name for kind in _ORDER for name in [n for n in known if n.partition(": ")[0] == kind][:_MOST_OF_A_KIND]]


def _told(event: Event) -> Iterator[tuple[str, float]]:
    for name, value in _TELLERS[event.kind](event.fields):
        if (known := number(value)) is not None:
            yield name, known


def number(value: Any) -> float | None:
    """A number of a journal, which may hold anything; None for what is none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _loss(fields: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    return (("loss", fields.get("value")), ("scale", fields.get("scale")))


def _grad(fields: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    if fields.get("point", "step") != "step":
        return ()
    return (("|grad|", _broken_norm(fields) if fields.get("l2") is None else fields["l2"]),)


def _broken_norm(fields: dict[str, Any]) -> float | None:
    """The norm of gradients that are not finite, where it was not written down."""
    broken = fields.get("nonfinite")
    if not isinstance(broken, list) or not broken:
        return None
    return math.nan if any(isinstance(row, dict) and row.get("nan") for row in broken) else math.inf


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


def step_times(events: Iterable[Event]) -> list[tuple[int, float]]:
    """How long the steps of one rank took, in seconds, from the moments of their losses."""
    first: dict[int, int] = {}
    for event in events:
        if event.kind == "loss" and event.time_ns:
            first.setdefault(event.step, event.time_ns)
    pairs = [(b, (first[b] - first[a]) / 1e9) for a, b in pairwise(sorted(first)) if b == a + 1]
    return [(step, seconds) for step, seconds in pairs if seconds > 0]


def thinned(
    name: str,
    steps: Sequence[int],
    values: Sequence[float],
    near: Sequence[int] = (),
    most: int = MOST_POINTS,
    ranks: Sequence[int] = (),
) -> dict[str, Any]:
    """One series as data: the mean over ranks and micro-batches at each step, and of many steps those that matter."""
    places, inverse = np.unique(np.asarray(steps, np.int64), return_inverse=True)
    told = np.asarray(values, np.float64)
    means = _means(inverse, told, len(places))
    apart = _apart(inverse, told, len(places), ranks)
    keep = _worth(places, [means, *([apart[1].min(0), apart[1].max(0)] if apart else [])], near, most)
    kept_steps, kept = places[keep], means[keep]
    odd = [[int(step), _word(value)] for step, value in zip(kept_steps, kept, strict=True) if not math.isfinite(value)]
    series = {
        "name": clean(name, limit=60),
        "steps": kept_steps.tolist(),
        "values": plain(kept),
        "odd": odd,
        "log": _spans_decades(kept),
        "of": len(places),
    }
    if len(places) > len(kept):
        series["smooth"] = _smooth(places, means)
    return series | (_of_ranks(apart[0], apart[1][:, keep]) if apart else {})


def _smooth(places: Any, values: Any) -> dict[str, Any]:
    """The means of even stretches: what the eye should follow where points lie denser than a screen."""
    starts = np.linspace(0, len(places), _STRETCHES, endpoint=False, dtype=np.int64)
    finite = np.isfinite(values)
    count = np.add.reduceat(finite.astype(np.int64), starts)
    with np.errstate(all="ignore"):
        means = np.add.reduceat(np.where(finite, values, 0.0), starts) / count
    middles = (starts + np.append(starts[1:], len(places)) - 1) // 2
    return {"steps": places[middles].tolist(), "values": plain(means)}


def _means(place: Any, values: Any, count: int) -> Any:
    """The mean at each place; nan where nobody told anything."""
    with np.errstate(all="ignore"):
        return np.bincount(place, values, count) / np.bincount(place, minlength=count)


def _worth(places: Any, series: Sequence[Any], near: Sequence[int], most: int) -> Any:
    """Which places show what all of them show, in each of these series."""
    keep = np.zeros(len(places), dtype=bool)
    for values in series:
        keep[worth_keeping(values, most // len(series))] = True
    for step in near:
        keep[np.searchsorted(places, step - NEAR) : np.searchsorted(places, step + NEAR, side="right")] = True
    return keep


def _apart(place: Any, values: Any, count: int, ranks: Sequence[int]) -> tuple[Any, Any] | None:
    """The ranks, and what each of them told by place; None where they do not differ."""
    numbers, row = np.unique(np.asarray(ranks, np.int64), return_inverse=True)
    if len(numbers) < 2:
        return None
    table = _means(row * count + place, values, len(numbers) * count).reshape(len(numbers), count)
    same = (table == table[0]) | (np.isnan(table) & np.isnan(table[0]))
    return None if same.all() else (numbers, table)


def _of_ranks(numbers: Any, table: Any) -> dict[str, Any]:
    """Few ranks as lines of their own; of many the lowest and the highest, and which ranks those are."""
    if len(numbers) <= _FEW_RANKS:
        rows = zip(numbers.tolist(), table, strict=True)
        return {"lines": [{"name": f"rank {number}", "values": plain(values)} for number, values in rows]}
    finite = np.isfinite(table)
    low, high = np.where(finite, table, np.inf), np.where(finite, table, -np.inf)
    return {
        "band": {
            "low": plain(low.min(0)), "high": plain(high.max(0)),
            "lowest": numbers[low.argmin(0)].tolist(), "highest": numbers[high.argmax(0)].tolist(),
        }
    }  # fmt: skip


def plain(values: Any) -> list[float | None]:
    """Numbers as strict JSON has them, in six digits; None for what is not finite."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in np.asarray(values).tolist()]


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _spans_decades(values: Any) -> bool:
    finite = values[np.isfinite(values)]
    if not len(finite) or finite.min() <= 0:
        return False
    return bool(np.log10(finite.max() / finite.min()) > _DECADES)
