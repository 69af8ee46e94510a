"""JSON that a logger wrote: a time, a level, a name, and then an object. fairseq and metaseq log so.

Enters: lines such as ``2021-08-13 14:59:32 | INFO | train_inner | {"epoch": 1, "update": 0.004, "loss": "20.714"}``,
among others that are only text. Leaves: the objects as rows, of the kind that stands before them, and the incidents
that the text tells of. fairseq's ``update`` is a part of an epoch; the steps are ``num_updates``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from brickprof.logs.reading import rows
from brickprof.logs.reading.incidents import Watch
from brickprof.logs.reading.model import Fact, Head, Item
from brickprof.logs.reading.objects import flat
from brickprof.logs.reading.records import Records, object_of
from brickprof.logs.reading.source import Source

_LINE = re.compile(rb'([^{}"]{1,400}?)(\{\s*".*\})\s*')
_TAG = re.compile(r"([A-Za-z][\w.]*)\W*$")
_OF_FAIRSEQ = re.compile(rb'\| (?:train_inner|train|valid\w*|test\w*) \| \{"')
_SCALE = re.compile(rb"gradient overflow detected, ignoring gradient, setting loss scale to: ([\d.e+]{1,20})")
_LOOKED_AT = 400


class LoggedJson:
    name = "logged-json"
    title = "JSON in the lines of a logger (fairseq, metaseq)"
    by_lines = True
    roles = {  # noqa: RUF012
        "update": "other", "train_num_updates": "step", "valid_num_updates": "step", "test_num_updates": "step",
        **{f"{begin}overflow_expert{which}": "other" for begin in ("", "train_", "valid_") for which in (1, 2)},
    }  # fmt: skip

    def sniff(self, head: Head) -> float:
        lines = [line for line in head.start.split(b"\n")[:_LOOKED_AT] if line.strip()]
        found = [taken for taken in map(_taken, lines) if taken is not None and flat(taken[1])]
        if not found:
            return 0.0
        if any(_OF_FAIRSEQ.search(line) for line in lines):
            return 0.95
        return 0.75 if len(found) > 1 and len(found) > len(lines) / 4 else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        watch = Watch()
        first = source.first_line
        for chunk in source.chunks():
            records = Records()
            overflows: list[Fact] = []
            lines = chunk.split(b"\n")[: -1 if chunk.endswith(b"\n") else None]
            for place, line in enumerate(lines):
                taken = _taken(line)
                if taken is not None:
                    records.object(place, taken[1], taken[0])
                elif scale := _SCALE.search(line):
                    overflows.append(Fact("overflow", first + place, {"to": float(scale[1])}))
                elif line.strip():
                    records.text(place, line)
            yield from records.items(first, watch)
            yield from overflows
            first += len(lines)
        yield from watch.end()


def _taken(line: bytes) -> tuple[str, dict[str, object]] | None:
    """The kind of row and the object of a line that holds one behind other words."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    value = object_of(found[2])
    tag = _TAG.search(found[1].decode("utf-8", "replace"))
    return (rows.kind_of(tag[1]) if tag else "", value) if value is not None else None


READER = LoggedJson()
