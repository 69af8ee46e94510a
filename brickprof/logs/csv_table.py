"""Any table in text: names on top, then rows, with commas, semicolons, tabs or bars between.

Enters: a CSV or TSV file that no other reader knows better. Leaves: blocks of its numbers. What TensorBoard exports of
one number (``Wall time,Step,Value``) is called by the name that the file has after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from brickprof.logs.reading import tables
from brickprof.logs.reading.model import Head, Item
from brickprof.logs.reading.source import Source

_ENDINGS = (".csv", ".tsv", ".tab")
_EXPORTED = ("wall time", "step", "value")
_TAG = re.compile(r"(?:.*?tag-)?(.+?)(?:\.csv)?")


class CsvTable:
    name = "csv"
    title = "a table in text (CSV, TSV)"

    def sniff(self, head: Head) -> float:
        header = tables.header_of(head)
        if header is None:
            return 0.0
        sure = 0.45 if header.separator in ",\t" else 0.35
        return sure + 0.25 if head.name.lower().endswith(_ENDINGS) else sure

    def read(self, source: Source) -> Iterator[Item]:
        def named(names: Sequence[str]) -> Sequence[str]:
            if tuple(name.lower() for name in names) != _EXPORTED:
                return names
            tag = _TAG.fullmatch(source.name)
            return [*names[:2], tag[1] if tag else names[2]]

        yield from tables.read(source, named)


READER = CsvTable()
