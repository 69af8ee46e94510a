"""Transfer spans: bricks that the script itself calls transfers, and the copies that were seen inside them.

Enters: spans. Leaves: how many transfers a step has by them, and bricks that make more than they declare:
``brick("to_device", kind="transfer", transfers=1, bytes=4096)``. A copy inside such a brick, or inside what is inside
it, is counted once, as the copy; a transfer brick without any is one. Copies within one device are none here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from brickprof.bricks import Kind
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Severity, Violation
from brickprof.records import Record, Span
from brickprof.rules import wording
from brickprof.rules.names import whole
from brickprof.rules.story import Story
from brickprof.rules.traffic import ACTION, EXPLAINED, QUESTION, Look, size_of

COPIES = frozenset({"H2D", "D2H", "D2D", "pin"})
"""Names of the spans that capture writes for copies; a brick of the script's has a name of its own."""
_MOST = 8192
_MOST_COPIES = 16 * _MOST


class _Copy(NamedTuple):
    start: int
    bytes: int
    parent: int


class Bricks:
    """Transfer spans: bricks of the script's, and copies inside them."""

    def __init__(self) -> None:
        self._own: dict[int, deque[Span]] = {}
        self._copies: dict[int, deque[_Copy]] = {}
        self._in_order: dict[int, list[_Copy]] = {}
        self._windows: Counter[tuple[int, int]] = Counter()

    def feed(self, record: Record) -> None:
        if not isinstance(record, Span):
            return
        declares = not record.attributes.keys().isdisjoint(("transfers", "bytes"))
        if record.brick.kind is Kind.TRANSFER and record.brick.path in COPIES:
            self._copy(record)
        elif record.brick.kind is Kind.TRANSFER or (declares and record.brick.kind is not Kind.KERNEL):
            self._own.setdefault(record.rank, deque(maxlen=_MOST)).append(record)

    def _copy(self, span: Span) -> None:
        if span.attributes.get("source") == "profiler":
            self._windows[span.rank, span.step] += span.brick.path != "D2D"
        elif span.brick.path != "pin" and not span.attributes.get("within"):
            kept = self._copies.setdefault(span.rank, deque(maxlen=_MOST_COPIES))
            kept.append(_Copy(span.start_ns, whole(span.attributes.get("bytes")), span.parent))
            self._in_order.pop(span.rank, None)

    def _inside(self, span: Span) -> list[_Copy]:
        """Copies that began while ``span`` was open, of what had not been open before it: another thread's are no part
        of it."""
        copies = self._in_order.get(span.rank)
        if copies is None:
            copies = self._in_order[span.rank] = sorted(self._copies.get(span.rank, ()))
        first = bisect_left(copies, span.start_ns, key=_began)
        last = bisect_left(copies, span.end_ns + 1, first, key=_began)
        return [copy for copy in copies[first:last] if copy.parent >= span.id]

    def _forgotten(self, rank: int) -> int:
        """Until when copies are no longer known."""
        copies = self._copies.get(rank, ())
        return min(map(_began, copies)) if len(copies) == _MOST_COPIES else 0

    def _transfers(self, rank: int) -> list[Span]:
        return [span for span in self._own.get(rank, ()) if span.brick.kind is Kind.TRANSFER]

    def added(self, found: list[Look]) -> list[Look]:
        """``found`` with the script's transfer bricks in which no copy was seen."""
        rank = found[0].event.rank
        since = self._forgotten(rank)
        empty = Counter(
            span.step for span in self._transfers(rank) if span.start_ns >= since and not self._inside(span)
        )
        return [replace(look, count=look.count + empty[look.event.step]) for look in found]

    def _by_step(self, rank: int) -> Counter[int]:
        return Counter(span.step for span in self._transfers(rank))

    def usual(self) -> float:
        """Transfers a step, as the script's own bricks have it."""
        counts = [self._by_step(rank) for rank in self._own]
        return max((float(np.median(list(steps.values()))) for steps in counts if steps), default=0.0)

    def windowed(self) -> str:
        """The copies that the profiler saw."""
        if not self._windows:
            return ""
        return f"{np.median(list(self._windows.values())):g} copies between host and device in a step"

    def in_windows(self, story: Story) -> dict[int, dict[int, int]]:
        """By rank, and by step that the profiler saw: copies between host and device."""
        return {
            rank: {event.step: self._windows[rank, event.step] for event in story.events("window", rank)}
            for rank in story.ranks
        }

    def crowd(self, rank: int, contract: Contract) -> Violation | None:
        steps = self._by_step(rank)
        usual = float(np.median(list(steps.values()))) if steps else 0.0
        if len(steps) < contract.threshold("looks") or usual < contract.threshold("many_transfers"):
            return None
        first = self._transfers(rank)[0]
        symptom = f"{usual:,.0f} transfers between host and device in every step"
        return Violation(
            contract.id, "extra-transfers", Severity.WARNING, symptom, first.step, first.step, "", "transfer", rank,
            (f"span:{first.id}@{rank}",), cause="extra-transfers", certainty=0.85, static=True, explains=EXPLAINED,
            details=dict(QUESTION), action=ACTION,
        )  # fmt: skip

    def over_declared(self, rank: int, contract: Contract) -> Violation | None:
        """A brick that says how many copies it makes, and in most of its turns makes more."""
        turns: dict[str, list[tuple[Span, int, int]]] = {}
        for span in self._own.get(rank, ()):
            declares = not span.attributes.keys().isdisjoint(("transfers", "bytes"))
            if declares and (seen := self._inside(span)):
                turns.setdefault(span.brick.path, []).append((span, len(seen), sum(copy.bytes for copy in seen)))
        for name, made in turns.items():
            over = [turn for turn in made if _beyond(*turn)]
            if len(over) >= contract.threshold("looks") and 2 * len(over) > len(made):
                return _over_declared(name, over, rank, contract)
        return None


def _began(copy: _Copy) -> int:
    return copy.start


def _beyond(span: Span, count: int, size: int) -> bool:
    most, room = (whole(span.attributes.get(name)) for name in ("transfers", "bytes"))
    return bool(most and count > most) or bool(room and size > room)


def _over_declared(name: str, over: list[tuple[Span, int, int]], rank: int, contract: Contract) -> Violation:
    first, count, size = over[0]
    told = {key: first.attributes[key] for key in ("transfers", "bytes") if key in first.attributes}
    symptom = f"{name} makes {wording.count(count, 'copy', 'copies')} ({size_of(size)}), where it declares {told}"
    known = over[int(contract.threshold("looks")) - 1][0].step
    return Violation(
        contract.id, "extra-transfers", Severity.WARNING, symptom, first.step, known, name, "transfer", rank,
        (f"span:{first.id}@{rank}",), cause="extra-transfers", certainty=0.9, static=True, explains=EXPLAINED,
        details=dict(QUESTION), action=ACTION,
    )  # fmt: skip
