"""Any table in text: names on top, then rows, with commas, semicolons, tabs or bars between.

Enters: a CSV or TSV file that no other reader knows better. Leaves: blocks of its numbers. What TensorBoard exports of
one number (``Wall time,Step,Value``) is called by the name that the file has after it, and so is a column without a
name: a list of losses as pandas writes it, or one bare column of numbers. A file whose name says nothing but that it is
of a training holds losses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from brickprof.logs.reading import names, tables
from brickprof.logs.reading.model import Head, Item
from brickprof.logs.reading.source import Source

_ENDINGS = (".csv", ".tsv", ".tab")
_EXPORTED = ("wall time", "step", "value")
_TAG = re.compile(r"(?:.*?tag-)?(.+?)(?:\.csv)?")
_OF_A_TRAINING = frozenset({"train", "training", "history", "curve", "log", "logs", "run", "model", "epoch", "epochs"})


class CsvTable:
    name = "csv"
    title = "a table in text (CSV, TSV)"

    def sniff(self, head: Head) -> float:
        header = tables.header_of(head)
        if header is None:
            return 0.35 if tables.bare(head) is not None else 0.0
        sure = 0.45 if header.separator in ",\t" else 0.35
        return sure + 0.25 if head.name.lower().endswith(_ENDINGS) else sure

    def read(self, source: Source) -> Iterator[Item]:
        def named(found: Sequence[str]) -> Sequence[str]:
            if tuple(name.lower() for name in found) != _EXPORTED:
                return found
            tag = _TAG.fullmatch(source.name)
            return [*found[:2], tag[1] if tag else found[2]]

        def by_file(found: Sequence[str]) -> Sequence[str]:
            return [_of_file(source.name) if name == "0" else name for name in found]

        head = source.head()
        if tables.header_of(head) is None and (header := tables.bare(head)) is not None:
            yield from tables.read(source, by_file, header=header)
            return
        yield from tables.read(source, named)


def _of_file(name: str) -> str:
    """What the numbers of a file are called that gives them no name."""
    stem = PurePath(name).stem
    if names.role(stem) != "other":
        return stem
    return "loss" if frozenset(names.words(stem)) & _OF_A_TRAINING else "0"


READER = CsvTable()
