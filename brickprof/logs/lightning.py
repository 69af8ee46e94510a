"""Lightning's ``metrics.csv``.

Enters: a table with ``epoch`` and ``step``, whose rows hold different columns: those of a training step, of an epoch,
of a validation. Leaves: blocks, one for each set of columns.
"""

from __future__ import annotations

from collections.abc import Iterator

from brickprof.logs.reading import tables
from brickprof.logs.reading.model import Head, Item
from brickprof.logs.reading.source import Source


class Lightning:
    name = "lightning"
    title = "Lightning metrics.csv"

    def sniff(self, head: Head) -> float:
        header = tables.header_of(head)
        if header is None or header.separator != "," or not {"epoch", "step"} <= set(header.names):
            return 0.0
        if head.name == "metrics.csv":
            return 0.9
        sparse = any(line.startswith(",") or ",," in line or line.endswith(",") for line in head.lines[1:20])
        of_lightning = any(name.endswith(("_step", "_epoch")) for name in header.names)
        return 0.85 if of_lightning else 0.75 if sparse else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        yield from tables.read(source)


READER = Lightning()
