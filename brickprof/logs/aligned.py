"""A table that is printed for people: names on top, a rule of dashes, numbers below, with blanks between.

Enters: such a table as spaCy prints it while it trains (``E  #  LOSS NER  ENTS_F  SCORE``), among other lines. Leaves:
blocks of its rows. The rule tells the columns, so that a name may hold a blank. spaCy counts epochs as ``E`` and steps
as ``#``; its losses are sums since the row before, of so many batches as that were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from brickprof.logs.reading import incidents, rows, tokens
from brickprof.logs.reading.model import Block, Head, Item
from brickprof.logs.reading.names import role
from brickprof.logs.reading.numbers import number
from brickprof.logs.reading.source import Source

_RULE = re.compile(r"\s*-{2,}(?:\s+-{2,}){2,}\s*")
_DASHES = re.compile(r"-{2,}")
_LONGEST = 2_000
_TOLD = frozenset({"loss", "eval_loss", "quality"})


class Aligned:
    name = "aligned"
    title = "a table with blanks between (spaCy)"
    roles: ClassVar[dict[str, str]] = {"E": "epoch", "#": "step", "SCORE": "quality"}

    def sniff(self, head: Head) -> float:
        """Sure where a rule stands below names that say what they are, and above numbers."""
        told = [line[:_LONGEST] for line in head.lines if line.strip()]
        for above, rule, below in zip(told, told[1:], told[2:], strict=False):
            names = _names(above, rule)
            if names and any(role(name) in _TOLD for name in names) and _row(below, names):
                return 0.7
        return 0.0

    def read(self, source: Source) -> Iterator[Item]:
        watch, reading = incidents.Watch(), _Reading()
        line = source.first_line
        for chunk in source.chunks():
            found = tokens.cut(chunk, line)
            left = [place for place in range(len(found)) if not reading.takes(found, place)]
            left = [place for place in left if place not in reading.headers]
            yield from reading.blocks()
            yield from watch.take(found, np.array(left, dtype=np.int64))
            shown = [(int(found.lines[place]), found.text(place)) for place in left if found.text(place).strip()]
            yield from rows.skipped(shown)
            line += chunk.count(b"\n")
        yield from watch.end()


class _Reading:
    def __init__(self) -> None:
        self.headers: set[int] = set()
        """Where the names stand, in the chunk."""
        self._above, self._place = "", -1
        self._names: tuple[str, ...] = ()
        self._lines: list[int] = []
        self._rows: list[list[float]] = []
        self._done: list[Block] = []

    def takes(self, found: tokens.Cut, place: int) -> bool:
        """Whether this line is a part of the table."""
        text = found.text(place)[:_LONGEST].decode("utf-8", "replace")
        if not text.strip():
            return True
        if names := _names(self._above, text):
            self._close()
            self._names = names
            self.headers.add(self._place)
            return True
        values = _row(text, self._names) if self._names else None
        self._above, self._place = text, place
        if values is None:
            return False
        self._lines.append(int(found.lines[place]))
        self._rows.append(values)
        return True

    def blocks(self) -> Iterator[Block]:
        """The rows of the chunk."""
        self.headers, self._place = set(), -1
        self._close()
        yield from self._done
        self._done = []

    def _close(self) -> None:
        """The rows so far, under the names that stand above them."""
        if self._rows:
            table = np.array(self._rows, dtype=np.float64)
            columns = {name: table[:, place] for place, name in enumerate(self._names)}
            self._done.append(Block(np.array(self._lines, dtype=np.int64), columns))
            self._lines, self._rows = [], []


def _names(above: str, rule: str) -> tuple[str, ...]:
    """What stands above each group of dashes; nothing where there is no rule, or something is nameless."""
    if not _RULE.fullmatch(rule):
        return ()
    begins = [found.start() for found in _DASHES.finditer(rule)]
    words: list[list[str]] = [[] for _ in begins]
    for found in re.finditer(r"\S+", above):
        place = max(sum(begin <= found.start() for begin in begins) - 1, 0)
        words[place].append(found[0])
    names = tuple(" ".join(each) for each in words)
    return names if all(names) and len(set(names)) == len(names) else ()


def _row(text: str, names: tuple[str, ...]) -> list[float] | None:
    values = [number(word) for word in text.split()]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) == len(names) else None


READER = Aligned()
