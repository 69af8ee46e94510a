"""Objects that a log holds one by one, gathered into blocks, facts and lines that say nothing.

Enters: for each line what it holds: columns of many lines at once, an object, or text. Leaves: items, in the order of
the file as far as numbers of the same names go. What is said in words is looked through for incidents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from brickprof.logs.reading import rows, settings
from brickprof.logs.reading.incidents import Watch
from brickprof.logs.reading.layouts import MESSAGES, SETTINGS, Columns
from brickprof.logs.reading.model import Block, Fact, Floats, Item, Whole
from brickprof.logs.reading.objects import flat, parse
from brickprof.logs.reading.tokens import cut

_LONGEST_MESSAGE = 64 << 10


def object_of(line: bytes) -> dict[str, Any] | None:
    """The object that a line is; None where it is none."""
    try:
        found = parse(line.decode("utf-8", "replace"))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def row_of(found: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any], str]:
    """The numbers of an object, the settings it states, and the kind of row it says it is."""
    states: dict[str, Any] = {}
    if "type" in found and str(found["type"]).lower() in SETTINGS:
        return {}, settings.flat(found), ""
    if not SETTINGS.isdisjoint(found):
        states = {key: value for key, value in found.items() if key in SETTINGS and isinstance(value, dict)}
        found = {key: value for key, value in found.items() if key not in states}
    kind = ""
    if not rows.MARKERS.isdisjoint(found):
        marker = next((value for key, value in found.items() if key in rows.MARKERS and isinstance(value, str)), "")
        kind = rows.kind_of(marker[:40])
    return flat(found), settings.flat(states), kind


class Records:
    """What the lines of a chunk hold, by their places in it."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, tuple[str, ...]], list[tuple[Whole, Mapping[str, Floats]]]] = {}
        self._rows: dict[str, tuple[list[int], list[dict[str, float]]]] = {}
        self._facts: list[tuple[int, dict[str, Any]]] = []
        self._unread: list[tuple[int, bytes]] = []
        self._said: list[tuple[int, bytes]] = []

    def columns(self, columns: Columns) -> None:
        self._put(columns.places, columns.values, columns.kind)

    def _put(self, places: Whole, values: Mapping[str, Floats], kind: str) -> None:
        if values:
            self._columns.setdefault((kind, tuple(sorted(values))), []).append((places, values))

    def line(self, place: int, line: bytes) -> None:
        """A line that should be an object."""
        if not line.strip():
            return
        found = object_of(line)
        if found is None:
            self.text(place, line)
        else:
            self.object(place, found)

    def object(self, place: int, found: Mapping[str, Any], kind: str = "") -> None:
        numbers, states, told = row_of(found)
        if states:
            self._facts.append((place, states))
        if numbers:
            where, which = self._rows.setdefault(kind or told, ([], []))
            where.append(place)
            which.append(numbers)
        if MESSAGES.isdisjoint(found):
            return
        for key, value in found.items():
            if isinstance(value, str) and key in MESSAGES:
                said = value[:_LONGEST_MESSAGE].encode("utf-8", "replace")
                self._said.extend((place, each) for each in said.split(b"\n"))

    def text(self, place: int, line: bytes) -> None:
        """A line that is no object."""
        self._unread.append((place, line))
        self._said.append((place, line[:_LONGEST_MESSAGE]))

    def items(self, first: int, watch: Watch) -> Iterator[Item]:
        """All of it; ``first`` is the number of the line at place 0."""
        for place, states in self._facts:
            yield Fact("setting", first + place, {"values": states})
        for kind, (where, which) in self._rows.items():
            for block in rows.blocks(where, which, kind):
                if block.rank is None:
                    self._put(block.lines, block.values, kind)
                else:
                    yield Block(block.lines + first, block.values, block.rank, kind)
        for (kind, _), pieces in self._columns.items():
            places = np.concatenate([each for each, _ in pieces])
            order = np.argsort(places, kind="stable") if len(pieces) > 1 else slice(None)
            joined = {name: np.concatenate([values[name] for _, values in pieces])[order] for name in pieces[0][1]}
            yield from rows.by_rank(places[order] + first, joined, kind)
        yield from self._incidents(first, watch)
        yield from rows.skipped([(first + place, line) for place, line in self._unread])

    def _incidents(self, first: int, watch: Watch) -> Iterator[Fact]:
        if not self._said:
            return
        said = cut(b"".join(each.replace(b"\r", b" ") + b"\n" for _, each in self._said))
        said.lines = np.array([first + place for place, _ in self._said], dtype=np.int64)
        yield from watch.take(said, np.arange(len(said)))
