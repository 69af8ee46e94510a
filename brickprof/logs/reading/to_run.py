"""From logs to a ``Run``: what the rules and the diagnosis of captured runs read.

Enters: the logs of one run (one file, or its ranks and attempts). Leaves: events. Where a series means what a captured
event means, it becomes one: the loss, the learning rate, the gradient norm, the loss scale, evaluations, exceptions,
settings. Everything else becomes ``metric`` events. Each carries the line it stands in, and the file where there are
several, so that a diagnosis can be traced back to the text.

    log        format, path, steps_by, rows, unread, examples, damage, first, last, total, attempts, repeated, loss (the
               name of the series that is minimised; empty where no name tells), several (losses that are parts, or work
               against each other), series [{name, role, count, first, last, gaps}]                      rank -1
    metric     name, role, value, line
    resumed    stopped_at, goes_on_at, before, after (losses), attempt, line                             rank -1
    said       fact (its kind: ended, device, collective, checkpoint, finished, note), and its fields     rank -1
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import numpy as np

from brickprof.logs.reading import names
from brickprof.logs.reading.gather import Log, Series, worth_keeping
from brickprof.logs.reading.joining import Piece, pieces
from brickprof.logs.reading.model import Fact
from brickprof.logs.reading.order import Attempt
from brickprof.records import Event, RunMeta
from brickprof.run import Run
from brickprof.text import clean

LAUNCH = -1
_FEW = 1024
"""Points of a series that is only shown."""
_MOST_METRICS = 300
_MOST_TEXT = 2_000
_LINE_NS = 1_000_000
_FILE_NS = 10**15
"""A log without times still has an order: files one after another, lines inside them."""
_KEPT_WHOLE = frozenset({
    "loss", "eval_loss", "quality", "skipped", "nonfinite", "step_seconds", "throughput", "memory", "tokens",
    "grad_norm", "lr", "scale", "epoch", "time",
})  # fmt: skip
_NEVER_MINIMISED = frozenset({"best", "min", "lowest", "ema", "smoothed", "smooth", "avg", "average", "running"})


def to_run(logs: Sequence[Log], *, name: str = "") -> Run:
    """The run that ``logs`` tell of, to be diagnosed like any other."""
    told = pieces(logs)
    events = [event for piece in told for event in _events(piece, several=len(told) > 1)]
    return Run.from_records(_numbered(events), _meta(logs, name))


def _meta(logs: Sequence[Log], name: str) -> RunMeta:
    formats = list(dict.fromkeys(log.format for log in logs))
    first = clean(PurePath(logs[0].path).name, limit=200) if logs else ""
    source = "+".join(formats) or "log"
    files = [clean(log.path, limit=400) for log in logs[:64]]
    return RunMeta(name or first or "log", script=first, source=source, level="log", extra={"files": files})


def _numbered(events: list[Event]) -> list[Event]:
    """In the order of time, with a number of its own for each rank: what an evidence id names."""
    events.sort(key=lambda event: event.time_ns)
    counts: dict[int, int] = {}
    numbered = []
    for event in events:
        counts[event.rank] = counts.get(event.rank, 0) + 1
        numbered.append(replace(event, seq=counts[event.rank]))
    return numbered


class _Teller:
    """The events of one log."""

    def __init__(self, piece: Piece, several: bool) -> None:
        self.log = piece.log
        self.rank = piece.rank
        self.begin = piece.order * _FILE_NS
        self.where = {"file": clean(PurePath(piece.log.path).name, limit=200)} if several else {}
        self.again = piece.again
        self.until = piece.until
        self.after = main_loss(piece.after) if piece.after is not None else None
        self.main = main_loss(piece.log)
        ruler = self.main or max(piece.log.series.values(), key=len, default=None)
        order = np.argsort(ruler.lines, kind="stable") if ruler is not None else np.empty(0, np.int64)
        self._lines = ruler.lines[order] if ruler is not None else order
        self._steps = ruler.steps[order] if ruler is not None else order

        self._alone = len({series.rank for series in piece.log.series.values() if series.rank is not None}) < 2

    def rank_of(self, told: int | None) -> int:
        """The rank of a line; where only one rank ever writes, whichever it is, it is the run's."""
        return self.rank if told is None or self._alone else int(told)

    def event(self, kind: str, step: int, line: int, fields: dict[str, Any], rank: int | None = None) -> Event:
        at = self.begin + int(line) * _LINE_NS
        told = {**fields, "line": int(line), **self.where}
        return Event(kind, int(step), told, time_ns=at, rank=self.rank if rank is None else rank)

    def goes_on_after(self, line: int) -> bool:
        """Whether training goes on behind ``line``."""
        return bool(len(self._lines)) and line < int(self._lines[-1])

    def step_at(self, line: int) -> int:
        """The step that was under way where ``line`` stands."""
        place = int(np.searchsorted(self._lines, line, side="right")) - 1
        return int(self._steps[place]) if place >= 0 else 0


def _events(piece: Piece, several: bool) -> Iterator[Event]:
    teller = _Teller(piece, several)
    log = teller.log
    yield _schema(teller)
    shown = 0
    for series in log.series.values():
        if not len(series):
            continue
        kind = _kind(teller, series)
        if kind == "metric":
            shown += 1
            if shown > _MOST_METRICS:
                continue
        yield from _points(teller, series, kind)
    if log.clock is not None and len(log.clock):
        yield from _times(teller, log.clock)
    if teller.after is not None and teller.main is not None:
        yield _follows(teller, teller.after, teller.main)
    for attempt in log.attempts:
        yield _resumed(teller, attempt)
    for fact in log.facts:
        yield from _said(teller, fact)


# -- series


def main_loss(log: Log) -> Series | None:
    """The loss that is minimised: of the first rank, and no running best or average where there is another."""
    losses = _of_one_rank(log)
    plain = [series for series in losses if not frozenset(names.words(series.name)) & _NEVER_MINIMISED] or losses
    main = names.main_loss(series.name for series in plain)
    chosen = [series for series in plain if series.name == main] or plain
    if main is None and len(chosen) > 1:  # parts: the one that is told most often, the first of those
        chosen = sorted(chosen, key=lambda series: -series.count)
    return chosen[0] if chosen else None


def _of_one_rank(log: Log) -> list[Series]:
    """The losses that the first rank tells which tells any: of large jobs only the last rank writes them."""
    losses = [series for series in log.of_role("loss") if len(series)]
    first = min((series.rank or 0 for series in losses), default=0)
    return [series for series in losses if (series.rank or 0) == first]


def _several(log: Log, main: Series | None) -> bool:
    """Whether the losses of this log are parts of something, and no name says which is the whole."""
    losses = {series.name for series in _of_one_rank(log)}
    plain = [name for name in losses if not frozenset(names.words(name)) & _NEVER_MINIMISED]
    return main is not None and len(plain) > 1 and names.main_loss(sorted(plain)) is None


def _kind(teller: _Teller, series: Series) -> str:
    """The native kind of event that means the same; ``metric`` where none does."""
    if series.role == "loss":
        same = teller.main is not None and series.name == teller.main.name
        return "loss" if same and not teller.again else "metric"
    if teller.again and series.role in ("lr", "grad_norm", "scale", "eval_loss"):
        return "metric"
    if series.role in ("lr", "grad_norm", "scale"):
        first = _foremost(teller.log, series.role, series.rank)
        kinds = {"lr": "optimizer", "grad_norm": "grad", "scale": "scaler"}
        return kinds[series.role] if series.name == first else "metric"
    return {"eval_loss": "evaluation", "memory": "memory"}.get(series.role, "metric")


def _foremost(log: Log, role: str, rank: int | None) -> str:
    """Of several series of one role the one that speaks for all: the shortest name that was told most often."""
    found = [series for series in log.of_role(role) if series.rank == rank and len(series)]
    return min(found, key=lambda series: (-series.count, len(names.words(series.name)), series.name)).name


def _points(teller: _Teller, series: Series, kind: str) -> Iterator[Event]:
    counted = series.last_attempts()
    values = counted.values
    keep = np.arange(len(values)) if teller.until is None else np.flatnonzero(counted.steps < teller.until)
    if series.role in ("loss", "eval_loss", "quality"):
        keep = keep[~_absent(teller.log, counted)[keep]]
    if series.role not in _KEPT_WHOLE and len(keep) > _FEW:
        keep = keep[worth_keeping(values[keep], _FEW)]
    rank = teller.rank_of(series.rank)
    steps, lines = counted.steps[keep].tolist(), counted.lines[keep].tolist()
    name = clean(series.name, limit=200)
    for step, value, line in zip(steps, values[keep].tolist(), lines, strict=True):
        yield teller.event(kind, step, line, _fields(kind, name, series.role, value), rank)


def _times(teller: _Teller, clock: Series) -> Iterator[Event]:
    """When lines were written, those of steps that were made again too: time went by in them."""
    rank, name = teller.rank_of(clock.rank), clean(clock.name, limit=200)
    for step, value, line in zip(clock.steps.tolist(), clock.values.tolist(), clock.lines.tolist(), strict=True):
        yield teller.event("metric", step, line, _fields("metric", name, clock.role, value), rank)


def _absent(log: Log, series: Series) -> Any:
    """Where a nan means that nothing was measured in this row: numbers come at regular intervals between them, or
    wherever another of these series has none."""
    nan, nothing = np.isnan(series.values), np.zeros(len(series), dtype=bool)
    numbers = np.flatnonzero(~nan)
    if len(numbers) < 2 or not nan.any():
        return nothing
    usual = float(np.median(np.diff(numbers)))
    tail, head = len(series) - 1 - int(numbers[-1]), int(numbers[0])
    if usual >= 2 and max(int(np.diff(numbers).max()), tail, head) <= 1.5 * usual:
        return nan
    for other in log.series.values():
        if other.name == series.name or other.role not in ("loss", "eval_loss", "quality") or nan.sum() < 2:
            continue
        shared = len(other) == len(series) and bool(np.array_equal(other.lines, series.lines))
        if shared and bool((np.isnan(other.values) != nan).all()):
            return nan
    return nothing


def _fields(kind: str, name: str, role: str, value: float) -> dict[str, Any]:
    if kind == "loss":
        return {"value": value, "name": name}
    if kind == "optimizer":
        return {"optimizer": 0, "lr": [value], "name": name}
    if kind == "grad":
        return {"l2": value, "name": name}
    if kind == "scaler":
        return {"op": "update", "scale": value, "name": name}
    if kind == "evaluation":
        return {"loss": value, "name": name, "frequent": False}
    if kind == "memory":
        return {"reported": value, "name": name}
    return {"name": name, "role": role, "value": value}


# -- what the log is


def _schema(teller: _Teller) -> Event:
    log = teller.log
    firsts = [int(series.steps.min()) for series in log.series.values() if len(series)]
    fields = {
        "format": log.format, "path": clean(log.path, limit=400), "steps_by": clean(log.steps_by, limit=80),
        "rows": log.rows, "unread": log.unread, "repeated": log.repeated,
        "examples": [[line, clean(text, limit=160)] for line, text in log.examples],
        "damage": [clean(text, limit=300) for text in log.damage[:16]],
        "first": min(firsts, default=0), "last": max(log.last_step, 0), "total": _total(log),
        "attempts": 1 + len(log.attempts), "loss": clean(teller.main.name, limit=200) if teller.main else "",
        "several": _several(log, teller.main), "cadence": _cadence(teller.main),
        "series": [_described(series) for series in list(log.series.values())[:_MOST_METRICS]],
    }  # fmt: skip
    return teller.event("log", 0, 0, fields, LAUNCH)


def _described(series: Series) -> dict[str, Any]:
    steps = series.steps
    return {
        "name": clean(series.name, limit=200), "role": series.role, "rank": series.rank, "count": series.count,
        "kept": len(series), "first": int(steps.min()) if len(steps) else None,
        "last": int(steps.max()) if len(steps) else None, "gaps": series.gaps(),
    }  # fmt: skip


def _cadence(series: Series | None) -> float | None:
    """Steps from one logged loss to the next."""
    if series is None or len(series) < 2:
        return None
    apart = np.diff(np.unique(series.steps))
    return float(np.median(apart)) * len(series) / max(series.count, 1) if len(apart) else None


_TOTALS = frozenset({"max_steps", "total_steps", "num_train_steps", "max_iters", "train_iters", "num_iterations",
                     "max_iterations", "total_iterations", "num_training_steps", "max_train_steps"})  # fmt: skip


def _total(log: Log) -> int | None:
    """The number of steps that the run was to take, where the log says so."""
    told = [float(series.values[-1]) for series in log.of_role("total_steps") if len(series)]
    for fact in log.facts:
        values = fact.fields.get("values") if fact.kind == "setting" else None
        for key, value in values.items() if isinstance(values, dict) else ():
            word = "_".join(names.words(str(key).rpartition(".")[2]))
            if word in _TOTALS and isinstance(value, int | float) and not isinstance(value, bool):
                told.append(float(value))
    known = [int(value) for value in told if math.isfinite(value) and value >= 1]
    return known[0] if known else None


def _resumed(teller: _Teller, attempt: Attempt) -> Event:
    fields: dict[str, Any] = {
        "stopped_at": attempt.stopped_at, "goes_on_at": attempt.goes_on_at, "attempt": attempt.number,
        "before": None, "after": None,
    }  # fmt: skip
    if teller.main is not None:
        losses = teller.main
        before = losses.values[(losses.lines < attempt.line) & (losses.steps <= attempt.goes_on_at)]
        after = losses.values[losses.lines >= attempt.line]
        fields["before"] = float(before[-1]) if len(before) else None
        fields["after"] = float(after[0]) if len(after) else None
    return teller.event("resumed", attempt.goes_on_at, attempt.line, fields, LAUNCH)


def _follows(teller: _Teller, before: Series, losses: Series) -> Event:
    """Another file goes on, or begins again, where the one before it stopped."""
    begin, stopped = int(losses.steps[0]), int(before.steps[-1])
    known = before.values[before.steps <= begin]
    fields = {
        "stopped_at": stopped, "goes_on_at": begin, "attempt": 1, "after": float(losses.values[0]),
        "before": float(known[-1]) if len(known) else None,
    }  # fmt: skip
    return teller.event("resumed", begin, int(losses.lines[0]), fields, LAUNCH)


# -- what the log says in words


def _said(teller: _Teller, fact: Fact) -> Iterator[Event]:
    step = fact.fields.get("step")
    at = int(step) if isinstance(step, int | float) and math.isfinite(step) else teller.step_at(fact.line)
    fields = {str(key): _plain(value) for key, value in fact.fields.items() if key != "step"}
    rank = teller.rank_of(fact.rank)
    if fact.kind == "exception" and not teller.goes_on_after(fact.line):
        yield teller.event("exception", at, fact.line, {**fields, "frames": _frames(fact.fields.get("frames"))}, rank)
    elif fact.kind == "window":
        yield teller.event("window", at, fact.line, fields, rank)
    elif fact.kind == "setting":
        yield teller.event("config", 0, fact.line, {"source": "log", **fields}, LAUNCH)
    elif fact.kind == "overflow":
        scale = fields.get("to") if isinstance(fields.get("to"), int | float) else fields.get("scale")
        told = {"op": "update", "scale": scale, "was": fields.get("scale"), "found_inf": True, "skipped": True}
        yield teller.event("scaler", at, fact.line, told, rank)
    else:
        yield teller.event("said", at, fact.line, {"fact": fact.kind, "by": rank, **fields}, LAUNCH)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value, limit=_MOST_TEXT)
    if isinstance(value, dict):
        return {clean(str(key), limit=200): _plain(item) for key, item in list(value.items())[:2_000]}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value[:200]]
    return value if isinstance(value, bool | int | float | type(None)) else clean(str(value), limit=200)


def _frames(frames: Any) -> list[dict[str, Any]]:
    """Frames as exceptions of captured runs have them: file, line, function."""
    made = []
    for frame in frames if isinstance(frames, list | tuple) else ():
        if isinstance(frame, dict):
            made.append({str(key): _plain(value) for key, value in frame.items()})
            continue
        place, _, function = str(frame).partition(" in ")
        file, _, line = place.rpartition(":")
        number = int(line) if line.isdigit() else 0
        made.append({"file": clean(file or place, limit=400), "line": number, "function": clean(function, limit=200)})
    return made[-32:]
