"""The longest wait of each line in each step: it also waits for what was queued before, which one read would as well.

Enters: spans of host reads, and of copies to the host. Leaves: what a line's reads take beside the longest of them,
which is what reading many numbers costs more than reading one. For journals whose ``syncs`` events do not say it.
"""

from __future__ import annotations

from brickprof.bricks import Kind
from brickprof.records import Record, Span

_MOST = 2**17


class LongestWaits:
    def __init__(self) -> None:
        self._longest: dict[tuple[int, int, str], int] = {}

    def feed(self, record: Record) -> None:
        if not isinstance(record, Span) or not _waits(record):
            return
        line = record.rank, record.step, str(record.attributes.get("site", ""))
        if line in self._longest or len(self._longest) < _MOST:
            self._longest[line] = max(self._longest.get(line, 0), record.host_ns)

    def beside(self, rank: int, step: int, site: str, ns: int) -> int | None:
        """Of ``ns`` for all waits of a line, all but the longest; None where no span says how long that was."""
        longest = self._longest.get((rank, step, site))
        return None if longest is None else max(0, ns - longest)


def _waits(span: Span) -> bool:
    return span.brick.kind is Kind.HOST_SYNC or (span.brick.kind is Kind.TRANSFER and span.brick.path == "D2H")
