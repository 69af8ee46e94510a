"""Ultralytics' ``results.csv`` (YOLO): a row an epoch.

Enters: a table whose names are filled up with spaces. Leaves: one block of losses, measures and rates; ``time`` is that
since the begin, not that of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

from brickprof.logs.reading import tables
from brickprof.logs.reading.model import Head, Item
from brickprof.logs.reading.source import Source

_OWN = ("train/", "metrics/", "val/")


class Ultralytics:
    name = "ultralytics"
    title = "Ultralytics results.csv"
    roles = {"time": "other"}  # noqa: RUF012

    def sniff(self, head: Head) -> float:
        header = tables.header_of(head)
        if header is None or header.names[0] != "epoch":
            return 0.0
        own = all(any(name.startswith(word) for name in header.names) for word in _OWN)
        rates = any(name.startswith(("lr/pg", "x/lr")) for name in header.names)
        return 0.95 if own and rates else 0.85 if own and head.name == "results.csv" else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        yield from tables.read(source)


READER = Ultralytics()
