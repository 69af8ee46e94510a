"""The copies and host reads of a run by line, for the ``run`` part of diagnosis.json.

Enters: the story. Leaves: ``transfers`` and ``host_reads``, a row for each line of the script, those first that take
most in a step on average: what a step makes of it that makes any, and how many do (``steps``) of those looked at
(``of``). Waits that ask for no value stand among the reads, with what they wait for. ``transfers_more`` and
``host_reads_more``: how many lines are left out, with what they move and take in a step on average. Nothing for a run
that was seen on no device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from brickprof.records import Event
from brickprof.rules import traffic
from brickprof.rules.names import whole
from brickprof.rules.story import Story

_MOST = 8
_FOR = {"stream.synchronize": "a stream", "event.synchronize": "an event"}
Row = dict[str, Any]


def transfer_facts(story: Story) -> dict[str, Any]:
    looks = [event for rank in story.ranks for event in story.events("transfers", rank)]
    if not looks:
        return {}
    reads = [event for rank in story.ranks for event in story.events("syncs", rank)]
    facts = {**_ranked("transfers", _copies(looks)), **_ranked("host_reads", [*_reads(reads), *_waits(reads)])}
    return {name: told for name, told in facts.items() if told}


def _ranked(name: str, rows: list[Row]) -> dict[str, Any]:
    """The dearest rows, and what the others come to."""
    ordered = sorted(rows, key=lambda row: (-_average(row, "ns"), -_average(row, "bytes")))
    rest = ordered[_MOST:]
    sums = {each: float(sum(_average(row, each) for row in rest)) for each in ("bytes", "ns")}
    return {name: ordered[:_MOST], f"{name}_more": {"lines": len(rest), **sums} if rest else None}


def _average(row: Row, name: str) -> float:
    """Over all steps that were looked at, of what the row's own steps make."""
    return float(row.get(name, 0.0) * row["steps"] / row["of"])


def _rows(event: Event, field: str, length: int) -> list[list[Any]]:
    listed = event.fields.get(field)
    return [row for row in listed if isinstance(row, list) and len(row) >= length] if isinstance(listed, list) else []


def _copies(looks: list[Event]) -> list[Row]:
    found: dict[tuple[str, str, bool | None, bool | None], list[list[int]]] = {}
    for event in looks:
        for site, way, count, size, pinned, blocking, ns, *_ in _rows(event, "rows", 7):
            key = (str(site), str(way), _flag(pinned), _flag(blocking))
            found.setdefault(key, []).append([whole(count), whole(size), whole(ns)])
    return [
        {"site": site, "direction": way, "pinned": pinned, "blocking": blocking,
         **_usual(seen, ("count", "bytes", "ns"), len(looks))}
        for (site, way, pinned, blocking), seen in found.items()
    ]  # fmt: skip


def _flag(value: Any) -> bool | None:
    """True, False, or None where it is not known."""
    return value if isinstance(value, bool) else None


def _reads(looks: list[Event]) -> list[Row]:
    found: dict[str, list[list[int]]] = {}
    for event in looks:
        for site, _, _, device, ns, *_ in _rows(event, "sites", 5):
            if whole(device):
                found.setdefault(str(site), []).append([whole(device), whole(ns)])
    return [{"site": site, **_usual(seen, ("count", "ns"), len(looks))} for site, seen in found.items()]


def _waits(looks: list[Event]) -> list[Row]:
    """Waits that ask for no value, each with what it waits for."""
    found: dict[tuple[str, str], list[list[int]]] = {}
    for event in looks:
        for site, kind, count, ns in traffic.waits(event):
            found.setdefault((site, kind), []).append([count, ns])
    rows = [{"site": site, "waits_for": _FOR.get(kind, "the device")} for site, kind in found]
    return [
        {**row, **_usual(seen, ("count", "ns"), len(looks))} for row, seen in zip(rows, found.values(), strict=True)
    ]


def _usual(seen: list[list[int]], names: tuple[str, ...], looked_at: int) -> Row:
    """What one step makes, of the steps that made any, and how many of those looked at they are."""
    counts = np.median(np.asarray(seen), axis=0).tolist()
    return {"steps": len(seen), "of": max(looked_at, len(seen)), **dict(zip(names, map(float, counts), strict=True))}
