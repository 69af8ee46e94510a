"""The copies and host reads of a run by line, for the ``run`` part of diagnosis.json.

Enters: the story. Leaves: ``transfers`` and ``host_reads``, a row for each line of the script, the dearest first, with
what an ordinary step makes of it; waits that ask for no value stand among the reads, with what they wait for. Nothing
for a run that was seen on no device.
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
    waits = sorted([*_reads(reads), *_waits(reads)], key=lambda row: -row["ns"])[:_MOST]
    facts = {"transfers": _copies(looks), "host_reads": waits}
    return {name: rows for name, rows in facts.items() if rows}


def _rows(event: Event, field: str, length: int) -> list[list[Any]]:
    listed = event.fields.get(field)
    return [row for row in listed if isinstance(row, list) and len(row) >= length] if isinstance(listed, list) else []


def _copies(looks: list[Event]) -> list[Row]:
    found: dict[tuple[str, str, Any, Any], list[list[int]]] = {}
    for event in looks:
        for site, way, count, size, pinned, blocking, ns, *_ in _rows(event, "rows", 7):
            key = (str(site), str(way), pinned, blocking)
            found.setdefault(key, []).append([whole(count), whole(size), whole(ns)])
    rows = [
        {"site": site, "direction": way, "pinned": pinned, "blocking": blocking, "steps": len(seen), **_usual(seen)}
        for (site, way, pinned, blocking), seen in found.items()
    ]
    return sorted(rows, key=lambda row: (-row["ns"], -row["bytes"]))[:_MOST]


def _usual(seen: list[list[int]]) -> dict[str, float]:
    """What one step makes, of the steps that made any."""
    counts = np.median(np.asarray(seen), axis=0).tolist()
    return dict(zip(("count", "bytes", "ns"), counts, strict=True))


def _reads(looks: list[Event]) -> list[Row]:
    found: dict[str, list[tuple[int, int]]] = {}
    for event in looks:
        for site, _, _, device, ns, *_ in _rows(event, "sites", 5):
            if whole(device):
                found.setdefault(str(site), []).append((whole(device), whole(ns)))
    return [{"site": site, **_usually(seen)} for site, seen in found.items()]


def _waits(looks: list[Event]) -> list[Row]:
    """Waits that ask for no value, each with what it waits for."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for event in looks:
        for site, kind, count, ns in traffic.waits(event):
            found.setdefault((site, kind), []).append((count, ns))
    rows = [{"site": site, "waits_for": _FOR.get(kind, "the device")} for site, kind in found]
    return [{**row, **_usually(seen)} for row, seen in zip(rows, found.values(), strict=True)]


def _usually(seen: list[tuple[int, int]]) -> Row:
    """How often and how long in a step, of the steps that did."""
    count, ns = np.median(np.asarray(seen), axis=0).tolist()
    return {"steps": len(seen), "count": float(count), "ns": float(ns)}
