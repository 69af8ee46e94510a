"""What stands behind a why: the values of its records, and where they lie in the pictures.

Enters: a ``Run`` and evidence ids. Leaves: rows of plain text, and the steps and the brick to ring. An id of a
wide range is looked up at its two ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from brickprof.errors import BrickprofError
from brickprof.records import Event, Record, Span
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Why
    from brickprof.run import Run

_IDS, _ROWS = 6, 8
_LOOKUPS = 240
"""Ids that need a search through the samples; those of single events do not count."""
_NUMBERED = re.compile(r"event:(\d+)@(-?\d+)")
_RANGE = re.compile(r"(\w+):(\d+)-(\d+)(.*)", re.DOTALL)
_STEP = re.compile(r"(?!event|span)\w+:(\d+)(?:-(\d+))?(?::|@|$)")
_HIDDEN = frozenset({"seq", "rank", "time_ns", "id", "histogram", "frames", "coordinates", "attributes", "checksum"})


@dataclass(frozen=True, slots=True)
class Row:
    identity: str
    step: int
    what: str
    values: str


@dataclass(frozen=True, slots=True)
class Proof:
    ids: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    first: int | None = None
    last: int | None = None
    brick: str = ""


class Prover:
    """Looks evidence up; without a run it knows only what an id says itself."""

    def __init__(self, run: Run | None) -> None:
        self._run = run
        self._left = _LOOKUPS

    def of(self, why: Why) -> Proof:
        records = [(identity, record) for identity in why.evidence[:_IDS] for record in self._find(identity)[:_ROWS]]
        rows = tuple(self._row(identity, record) for identity, record in records)
        steps = [row.step for row in rows if row.step >= 0] or list(_steps(why.evidence))
        brick = why.brick or next(filter(None, (self._brick(record) for _, record in records)), "")
        first, last = (min(steps), max(steps)) if steps else (None, None)
        return Proof(why.evidence, rows, first, last, brick)

    def _find(self, identity: str) -> list[Record]:
        if self._run is None:
            return []
        if match := _NUMBERED.fullmatch(identity):
            return self._events.get((int(match[2]), int(match[1])), [])
        if self._left <= 0:
            return []
        self._left -= 1
        match = _RANGE.fullmatch(identity)
        ends = [f"{match[1]}:{match[2]}{match[4]}", f"{match[1]}:{match[3]}{match[4]}"] if match else [identity]
        try:
            return [record for end in ends for record in self._run.find(end)[: _ROWS // len(ends)]]
        except BrickprofError:
            return []

    @cached_property
    def _events(self) -> dict[tuple[int, int], list[Record]]:
        found: dict[tuple[int, int], list[Record]] = {}
        for part in self._run.parts if self._run is not None else ():
            for event in part.events:
                found.setdefault((part.rank, event.seq), []).append(event)
        return found

    def _brick(self, record: Record) -> str:
        if isinstance(record, Event):
            return ""
        return record.brick.name(qualified=self._run is not None and self._run.qualified)

    def _row(self, identity: str, record: Record) -> Row:
        if isinstance(record, Event):
            return Row(identity, record.step, record.kind, _values(record.fields))
        fields = {name: getattr(record, name) for name in record.__slots__}
        if isinstance(record, Span):
            told = {"host_ms": record.host_ns / 1e6, "device_ns": record.device_ns}
            return Row(identity, record.step, f"{record.phase} {self._brick(record)}", _values(told))
        for name in ("brick", "tensor", "role", "step", "micro"):
            fields.pop(name)
        return Row(identity, record.step, f"{record.role} {record.tensor}", _values(fields))


def _steps(identities: Iterable[str]) -> Iterable[int]:
    for identity in identities:
        if match := _STEP.match(identity):
            yield from (int(number) for number in match.groups() if number)


def _values(fields: dict[str, Any]) -> str:
    told = [f"{name} {_value(value)}" for name, value in fields.items() if name not in _HIDDEN and value is not None]
    return " · ".join(told)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return clean(value, limit=160)
