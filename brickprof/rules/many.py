"""Many records at once, in the order in which they happened, and apart from them the events that every step writes.

Enters: records. Leaves: the same, for listeners (``Listener.follow``) to whom the order of most of them means nothing:
a training writes a loss, a clip and an update in each step, and who only counts these takes them by the column. They
are set apart once for all listeners.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from brickprof.records import Event, Record

EVERY_STEP = ("loss", "clip", "optimizer")
"""Kinds of events of which a run has about as many as steps."""


class Many:
    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records

    def each(self, kind: str) -> list[Event]:
        """The events of a kind of ``EVERY_STEP`` in some rank's own process, in order."""
        return self._split[0][kind]

    @property
    def others(self) -> list[Record]:
        """All other records, in order."""
        return self._split[1]

    @cached_property
    def _split(self) -> tuple[dict[str, list[Event]], list[Record]]:
        found: dict[str, list[Event]] = {kind: [] for kind in EVERY_STEP}
        others: list[Record] = []
        for record in self.records:
            if type(record) is Event and record.kind in found and record.rank >= 0:
                found[record.kind].append(record)
            else:
                others.append(record)
        return found, others
