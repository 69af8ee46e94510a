"""JSON lines: one object a line, whatever its keys are.

Enters: lines such as ``{"step": 12, "train": {"loss": "2.25"}, "lr": 1e-4}``. Keys may come and go, numbers may stand
in quotes, and NaN and Infinity may not. Leaves: blocks of numbers under flat names, the settings and incidents that a
line tells of, and the lines that are no objects.
"""

from __future__ import annotations

from collections.abc import Iterator

from brickprof.logs.reading.incidents import Watch
from brickprof.logs.reading.layouts import Layouts, Lines
from brickprof.logs.reading.model import Head, Item
from brickprof.logs.reading.objects import flat
from brickprof.logs.reading.records import Records, object_of
from brickprof.logs.reading.source import Source

_ENDINGS = (".jsonl", ".ndjson", ".jsonlines")
_CHUNK = 2 << 20
"""What is gone over many times should fit a cache."""
_LOOKED_AT = 50
_MOSTLY = 0.6


class JsonLines:
    name = "jsonl"
    title = "JSON lines"
    by_lines = True

    def sniff(self, head: Head) -> float:
        ends_so = head.name.lower().endswith(_ENDINGS)
        lines = [line.strip() for line in head.start.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
        whole = [line for line in (lines[:-1] if len(lines) > 1 else lines) if line][:_LOOKED_AT]
        if sum(line.startswith(b"{") for line in whole) < max(_MOSTLY * len(whole), 1):
            return 0.0
        objects = [found for found in map(object_of, whole) if found is not None]
        if len(objects) < max(_MOSTLY * len(whole), 1):
            return 0.4 if len(whole) == 1 and ends_so else 0.0  # one line, longer than what was looked at
        if not any(flat(found) for found in objects):
            return 0.1
        return 0.8 if len(objects) > 1 or ends_so else 0.45

    def read(self, source: Source) -> Iterator[Item]:
        layouts, watch = Layouts(), Watch()
        first = source.first_line
        for chunk in source.chunks(_CHUNK):
            lines = Lines(chunk.removeprefix(b"\xef\xbb\xbf") if first == 1 else chunk, layouts.expected)
            records = Records()
            found, alone = layouts.read(lines)
            for columns in found:
                records.columns(columns)
            for place in alone.tolist():
                records.line(place, lines.line(place))
            yield from records.items(first, watch)
            first += len(lines)
        yield from watch.end()


READER = JsonLines()
