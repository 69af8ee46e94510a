"""The longest wait of each line in each step: it also waits for what was queued before, which one read would as well.

Enters: spans of host reads, and of copies to the host. Leaves: what a line's reads take beside the longest of them,
which is what reading many numbers costs more than reading one.
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

    def beside(self, rank: int, step: int, site: str, ns: int, count: int) -> float:
        """Of ``ns`` for ``count`` waits, all but the longest; but the usual one, where nobody took their times."""
        return max(0.0, ns - self._longest.get((rank, step, site), ns / max(count, 1)))


def _waits(span: Span) -> bool:
    return span.brick.kind is Kind.HOST_SYNC or (span.brick.kind is Kind.TRANSFER and span.brick.path == "D2H")
