"""The spans of a run as one OpenTelemetry trace: run > step > forward, backward, optimizer > block.

Enters: spans and events of the journal, rank by rank in the order in which they were written. Leaves:
finished ``ReadableSpan`` objects of the SDK, each once, every one with a parent that is in the trace.

A brick closes before the one that holds it, so a child is written before its parent. Spans are therefore
held until their step is over; by then a parent that is missing was never recorded (it was not
sampled, or its part of the file is damaged), and the child moves up to its step, else to the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SpanEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from brickprof.bricks import Brick, Coordinates, Kind, title
from brickprof.records import BUDGET, Event, RunMeta, Span
from brickprof.telemetry import ids
from brickprof.telemetry.marks import Mark, Scalar, attributes, mark
from brickprof.telemetry.resource import resource
from brickprof.text import clean

LAG = 2
"""A step is over when this many later ones have been seen: device times may arrive a step late."""
_REMEMBERED = 8
_MOST_EVENTS = 128
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCHEMA = "https://opentelemetry.io/schemas/1.27.0"


@dataclass(slots=True)
class _Rank:
    resource: Resource
    open: dict[int, list[Span]] = field(default_factory=dict)
    marks: dict[int, list[Mark]] = field(default_factory=dict)
    bricks: dict[int, Brick] = field(default_factory=dict)
    exported: dict[int, set[int]] = field(default_factory=dict)
    """The spans of the last steps that went out, by step."""
    wholes: dict[int, int] = field(default_factory=dict)
    """The span of the step itself, by step."""
    newest: int = -1


class Tree:
    def __init__(self, meta: RunMeta, known: Mapping[int, AbstractSet[int]] | None = None) -> None:
        """``known``: all span numbers of each rank, where they can be told beforehand."""
        self.meta = meta
        self.trace_id = ids.trace_id(meta)
        self._root = self._context(ids.root_id(self.trace_id))
        self._known = known
        self._ranks: dict[int, _Rank] = {}
        self._models: set[str] = set()
        self._late: list[Mark] = []
        self._dropped = 0
        self._first = meta.started_ns
        self._last = 0
        self._scope = InstrumentationScope("brickprof", meta.version or None, _SCHEMA)

    def event(self, event: Event) -> None:
        self._seen(event.time_ns, event.time_ns)
        rank = self._rank(event.rank)
        fields = event.fields
        if event.kind in ("run", "start"):
            rank.resource = resource(self.meta, fields)
        elif event.kind == "brick" and fields.get("brick_kind") in set(Kind):
            path, model = str(fields.get("path", "")), str(fields.get("model", ""))
            rank.bricks[fields.get("id", 0)] = Brick(Kind(fields["brick_kind"]), path, model)
            self._models.add(model)
        elif (found := mark(event)) is not None:
            rank.marks.setdefault(event.step, []).append(found)

    def found(self, marks: Iterable[Mark]) -> None:
        """Takes what the diagnosis found: the span of the run carries it."""
        self._keep(marks)

    def span(self, span: Span) -> bool:
        """Takes one span; True when a new step begins with it, so that another may be over."""
        self._seen(span.start_ns, span.end_ns)
        rank = self._rank(span.rank)
        rank.open.setdefault(span.step, []).append(span)
        self._models.add(span.brick.model)
        if span.step <= rank.newest:
            return False
        rank.newest = span.step
        return True

    def over(self) -> list[ReadableSpan]:
        """The spans of steps that are over, and forgets them."""
        return [
            span
            for number, rank in self._ranks.items()
            for step in sorted(step for step in {*rank.open, *rank.marks} if step <= rank.newest - LAG)
            for span in self._step(number, rank, step)
        ]

    def finish(self) -> list[ReadableSpan]:
        """All that is left, the span of the run last."""
        rest = [
            span
            for number, rank in self._ranks.items()
            for step in sorted({*rank.open, *rank.marks})
            for span in self._step(number, rank, step)
        ]
        return [*rest, self._run()]

    def _step(self, number: int, rank: _Rank, step: int) -> list[ReadableSpan]:
        spans = rank.open.pop(step, [])
        rank.exported.setdefault(step, set()).update(span.id for span in spans)
        rank.wholes.update((step, span.id) for span in spans if span.phase == "step")
        for old in [old for old in rank.exported if old < step - _REMEMBERED]:
            del rank.exported[old]
            rank.wholes.pop(old, None)
        placed = self._placed(rank.marks.pop(step, []), spans, rank)
        return [self._brick(number, rank, span, placed.get(span.id, ())) for span in spans]

    def _placed(self, marks: list[Mark], spans: list[Span], rank: _Rank) -> dict[int, list[Mark]]:
        """Which span carries which mark: the brick it names, else the step, else the run."""
        placed: dict[int, list[Mark]] = {}
        whole = next((span.id for span in spans if span.phase == "step"), None)
        for found in marks:
            brick = rank.bricks.get(found.brick) if isinstance(found.brick, int) else found.brick
            named = [span for span in spans if brick is not None and brick in (span.brick, span.brick.path)]
            named.sort(key=lambda span: span.phase != found.phase)
            at = named[0].id if named else whole
            if at is None or found.fatal:
                self._keep([found])
            if at is not None:
                placed.setdefault(at, []).append(found)
        return placed

    def _brick(self, number: int, rank: _Rank, span: Span, marks: Iterable[Mark]) -> ReadableSpan:
        said: dict[str, Scalar] = {**attributes(span.attributes, "brickprof."), **self._said(number, span)}
        return self._readable(
            title(span.brick, span.phase, qualified=self._qualified),
            self._context(ids.span_id(self.trace_id, number, span.id)),
            self._parent(number, rank, span),
            rank.resource,
            said,
            list(marks),
            (span.start_ns, span.end_ns),
        )

    def _parent(self, number: int, rank: _Rank, span: Span) -> SpanContext:
        if span.parent and span.parent != span.id and self._is_known(number, rank, span):
            return self._context(ids.span_id(self.trace_id, number, span.parent))
        whole = rank.wholes.get(span.step)
        if whole is not None and span.id != whole:
            return self._context(ids.span_id(self.trace_id, number, whole))
        return self._root

    def _is_known(self, number: int, rank: _Rank, span: Span) -> bool:
        if self._known is not None:
            return span.parent in self._known.get(number, ())
        return any(span.parent in numbers for numbers in rank.exported.values())

    def _said(self, number: int, span: Span) -> dict[str, Scalar]:
        device_us = None if span.device_ns is None else span.device_ns / 1000
        host_us = max(span.end_ns - span.start_ns, 0) / 1000
        said: dict[str, Scalar] = {
            "brickprof.brick.name": self._name(span.brick),
            "brickprof.brick.granularity": str(span.brick.kind),
            "brickprof.brick.actual_us": host_us if device_us is None else device_us,
            "brickprof.host_us": host_us,
            "brickprof.device_time_known": device_us is not None,
            "brickprof.phase": span.phase,
            "brickprof.step": span.step,
            "brickprof.rank": number,
        }
        if device_us is not None:
            said["brickprof.device_us"] = device_us
        if span.stream is not None:
            said["brickprof.stream"] = span.stream
        return said | _fares(span, host_us if device_us is None else device_us) | _place(span.coordinates)

    def _run(self) -> ReadableSpan:
        said: dict[str, Scalar] = {
            "brickprof.run.id": clean(self.meta.run_id),
            "brickprof.run.level": clean(self.meta.level),
            "brickprof.run.source": clean(self.meta.source),
            "brickprof.run.ranks": sum(number != ids.ROOT_RANK for number in self._ranks),
        }
        if self.meta.script:
            said["brickprof.run.script"] = clean(self.meta.script)
        if self._dropped:
            said["brickprof.events_dropped"] = self._dropped
        launch = self._ranks.get(ids.ROOT_RANK)
        return self._readable(
            "run",
            self._root,
            None,
            launch.resource if launch else resource(self.meta),
            said,
            self._late,
            (self._first, self._last),
            failed=[found for found in self._late if found.fatal],
        )

    def _readable(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        source: Resource,
        said: dict[str, Scalar],
        marks: list[Mark],
        times: tuple[int, int],
        failed: list[Mark] | None = None,
    ) -> ReadableSpan:
        errors = [found for found in (marks if failed is None else failed) if found.error_type]
        if errors:
            said["error.type"] = errors[0].error_type
        start = max(times[0], 0)
        return ReadableSpan(
            name,
            context=context,
            parent=parent,
            resource=source,
            attributes=said,
            events=[SpanEvent(found.name, found.attributes, found.time_ns) for found in marks],
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, errors[0].message) if errors else Status(StatusCode.UNSET),
            start_time=start,
            end_time=max(times[1], start),
            instrumentation_scope=self._scope,
        )

    @property
    def _qualified(self) -> bool:
        return len(self._models - {""}) > 1

    def _name(self, brick: Brick) -> str:
        return _shown(brick, qualified=self._qualified)

    def _rank(self, number: int) -> _Rank:
        if number not in self._ranks:
            self._ranks[number] = _Rank(resource(self.meta))
        return self._ranks[number]

    def _context(self, number: int) -> SpanContext:
        return SpanContext(self.trace_id, number, is_remote=False, trace_flags=_SAMPLED)

    def _seen(self, start_ns: int, end_ns: int) -> None:
        if start_ns > 0:
            self._first = min(self._first or start_ns, start_ns)
        self._last = max(self._last, end_ns)

    def _keep(self, marks: Iterable[Mark]) -> None:
        for found in marks:
            if found.fatal or len(self._late) < _MOST_EVENTS:
                self._late.append(found)
            else:
                self._dropped += 1


@lru_cache(4096)
def _shown(brick: Brick, *, qualified: bool) -> str:
    return clean(brick.name(qualified=qualified) or str(brick.kind))


def _fares(span: Span, actual_us: float) -> dict[str, Scalar]:
    """How the brick fares against its budget, where it has one."""
    budget = span.attributes.get(BUDGET)
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget > 0:
        return {}
    return {
        "brickprof.brick.budget_us": float(budget),
        "brickprof.brick.over_budget": actual_us > budget,
        "brickprof.brick.efficiency": min(budget / actual_us, 1.0) if actual_us > 0 else 1.0,
    }


@lru_cache(256)
def _place(coordinates: Coordinates) -> dict[str, Scalar]:
    return {f"brickprof.{name}": value for name, value in coordinates.to_dict().items()}
