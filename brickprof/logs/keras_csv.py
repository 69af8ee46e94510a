"""The log of Keras' CSVLogger: a row an epoch, counted from 0.

Enters: a table of ``epoch`` and the measures of the training, those of the validation with ``val_`` before them.
Leaves: one block; an epoch that was not finished holds NA, which is no number.
"""

from __future__ import annotations

from collections.abc import Iterator

from brickprof.logs.reading import tables
from brickprof.logs.reading.model import Head, Item
from brickprof.logs.reading.rows import MARKERS
from brickprof.logs.reading.source import Source


class KerasCsv:
    name = "keras"
    title = "Keras CSVLogger"

    def sniff(self, head: Head) -> float:
        header = tables.header_of(head)
        if header is None or header.names[0] != "epoch" or {"step", *MARKERS} & set(header.names):
            return 0.0
        measures = [name for name in header.names[1:] if not name.startswith("val_")]
        beside = [name for name in header.names[1:] if name.startswith("val_") and name[4:] in measures]
        alone = "loss" in measures and len(header.names) > 2
        return 0.85 if "loss" in measures and "val_loss" in beside else 0.75 if alone else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        yield from tables.read(source)


READER = KerasCsv()
