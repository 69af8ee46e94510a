"""What a run used, by step: memory of host and device, the cards, copies and host reads.

Enters: a ``Run``. Leaves: panels as plain data, each with its unit and a line for each thing it shows (a kind of
memory, a card, a direction); none for what was not recorded. Lines are thinned like every other series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from brickprof.reports.page.curves import LAST_STEP, number, thinned
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.records import Event
    from brickprof.run import Run

MOST_POINTS = 1_200
_MOST_LINES = 8
_HOST = (("rss", "resident"), ("tree", "with its children"))
_DEVICE = (("device_allocated", "allocated"), ("device_reserved", "reserved"), ("device_peak", "peak"))
_CARD = (
    ("utilisation", "utilisation", "share", ""), ("power", "power", "W", "power_limit"),
    ("sm_clock", "clock", "MHz", "sm_clock_max"), ("temperature", "temperature", "C", ""),
    ("memory_used", "memory in use", "bytes", "memory_total"),
)  # fmt: skip
_WAYS = {"H2D": "to device", "D2H": "to host", "D2D": "between devices", "pin": "to pinned memory"}

Lines = dict[str, tuple[list[int], list[float], list[int]]]
Told = Iterator[tuple[str, Any]]


def memory(run: Run, near: Sequence[int] = ()) -> list[dict[str, Any]]:
    """The memory of the processes and, where there is one, of their device; of several ranks each."""
    launch = not any(event.kind == "memory" for part in run.parts if part.rank >= 0 for event in part.events)
    host = _lines(run, "memory", partial(_named, wanted=_HOST), launch=launch)
    device = _lines(run, "memory", partial(_named, wanted=_DEVICE))
    return _panels([("memory of the host", "bytes", host), ("memory of the device", "bytes", device)], near)


def traffic(run: Run, near: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Copies between host and device in a step, by direction, and the host's reads of tensors that lie on a device."""
    bytes_, copies = (_lines(run, "transfers", partial(_ways, at=at)) for at in (3, 2))
    reads = _lines(run, "syncs", _reads, wanted=lambda event: bool(event.fields.get("device")))
    waits = _lines(run, "syncs", _waits, wanted=lambda event: bool(event.fields.get("device")))
    return _panels(
        [
            ("copied in a step", "bytes", bytes_),
            ("copies in a step", "count", copies),
            ("host reads in a step", "count", reads),
            ("waited for them in a step", "ns", waits),
        ],
        near,
    )


def cards(run: Run, near: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Utilisation, power, clock, temperature and memory of each card, as the supervisor saw them."""
    found = []
    for field, name, unit, limit in _CARD:
        lines = _lines(run, "card", partial(_card, field=field), launch=True)
        for panel in _panels([(name, unit, lines)], near):
            if limit and (bound := _bound(run, limit)):
                panel["level"] = {"at": bound, "word": "limit"}
            found.append(panel)
    return found


def card_names(run: Run) -> list[str]:
    """What the cards are called, each name once with how many there are."""
    names: dict[str, str] = {}
    for event in _events(run, "card", launch=True):
        if event.fields.get("what") == "device" and event.fields.get("name"):
            names[str(event.fields.get("device"))] = clean(event.fields["name"], limit=60)
    counts: dict[str, int] = {}
    for name in names.values():
        counts[name] = counts.get(name, 0) + 1
    return [f"{count} x {name}" if count > 1 else name for name, count in counts.items()]


# -- what events tell


def _named(fields: dict[str, Any], wanted: Sequence[tuple[str, str]]) -> Told:
    for field, name in wanted:
        yield name, fields.get(field)


def _ways(fields: dict[str, Any], at: int) -> Told:
    """The sum of one column of the rows, by direction."""
    sums: dict[str, int] = {}
    for row in rows if isinstance(rows := fields.get("rows"), list) else ():
        if isinstance(row, list) and len(row) >= 4 and isinstance(row[at], int):
            way = _WAYS.get(str(row[1]), clean(row[1], limit=20))
            sums[way] = sums.get(way, 0) + row[at]
    yield from sums.items()


def _reads(fields: dict[str, Any]) -> Told:
    yield "reads", fields.get("device")


def _waits(fields: dict[str, Any]) -> Told:
    yield "waited", fields.get("ns")


def _card(fields: dict[str, Any], field: str) -> Told:
    if fields.get("what") == "sample":
        yield f"card {clean(fields.get('device') or 0, limit=12)}", fields.get(field)


def _bound(run: Run, limit: str) -> float | None:
    """The limit that the cards have, where all have the same."""
    told = {number(event.fields.get(limit)) for event in _events(run, "card", launch=True)} - {None}
    known = told.pop() if len(told) == 1 else None
    return known if known is not None and math.isfinite(known) else None


# -- panels


def _events(run: Run, kind: str, *, launch: bool = False) -> Iterator[Event]:
    for part in run.parts:
        if launch == (part.rank < 0):
            yield from (event for event in part.events if event.kind == kind)


def _lines(
    run: Run,
    kind: str,
    told: Callable[[dict[str, Any]], Told],
    *,
    launch: bool = False,
    wanted: Callable[[Event], bool] = lambda event: True,
) -> Lines:
    lines: Lines = {}
    for event in _events(run, kind, launch=launch):
        if not 0 <= event.step <= LAST_STEP or not wanted(event):
            continue
        for name, value in told(event.fields):
            if (known := number(value)) is not None:
                steps, values, ranks = lines.setdefault(name, ([], [], []))
                steps.append(event.step)
                values.append(known)
                ranks.append(event.rank)
    return lines


def _panels(given: Sequence[tuple[str, str, Lines]], near: Sequence[int]) -> list[dict[str, Any]]:
    found = []
    for name, unit, lines in given:
        kept = {label: told for label, told in list(lines.items())[:_MOST_LINES] if len(set(told[0])) > 1}
        if not kept:
            continue
        several = len(kept) > 1
        drawn = [
            thinned(label, steps, values, near, MOST_POINTS, () if several else ranks)
            for label, (steps, values, ranks) in kept.items()
        ]
        head = {"name": name, "unit": unit, "log": False}
        found.append(head | ({"alone": drawn} if several else {**drawn[0], **head}))
    return found
