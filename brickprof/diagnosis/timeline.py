"""What a run's records say about the time before an incident, kept small.

Enters: records, one at a time. Leaves: the series and counts that causes are decided from: norms,
losses, learning rates, update sizes, the gradient profile over depth, what was clipped, scaled and
looked at. Causal order inside a step is ``brickprof.rules.causality``'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from brickprof.bricks import Brick
from brickprof.diagnosis.series import Point, Series
from brickprof.records import Event, Record, Sample, Span
from brickprof.rules.causality import Depth
from brickprof.rules.many import Many
from brickprof.rules.names import NAMING, Names, number
from brickprof.rules.sightings import USED

_MOST_TENSORS = 20_000
_MOST_STEPS = 4096


@dataclass(slots=True)
class Level:
    """The first and the latest finite absmax of one tensor's gradient."""

    first: Point
    brick: Brick
    latest: Sample

    @property
    def last(self) -> Point:
        return _unscaled(self.latest)


def _kinds(events: Iterable[Event], name: str) -> set[type]:
    """The types that a field has in some events."""
    return {type(event.fields.get(name)) for event in events}


def _unscaled(sample: Sample) -> Point:
    """The largest gradient of a sample, without the loss scale."""
    scale = sample.scale if sample.scale and sample.scale > 0 else 1.0
    return Point(sample.step, (sample.absmax or 0.0) / scale, sample.id, sample.tensor)


class Moves:
    """How far each sampled step moved all weights together.

    Of the whole, not of the worst tensor: a bias that starts at zero is moved by all of its size at first.
    """

    def __init__(self) -> None:
        self._steps: dict[int, tuple[float, float, float, str]] = {}

    def add(self, step: int, moved: float, size: float, evidence: str) -> None:
        moved_, size_, largest, shown = self._steps.get(step, (0.0, 0.0, -1.0, ""))
        if moved > largest:
            largest, shown = moved, evidence
        self._steps[step] = (moved_ + moved * moved, size_ + size * size, largest, shown)
        if len(self._steps) > _MOST_STEPS:
            for old in list(self._steps)[_MOST_STEPS // 8 : -_MOST_STEPS // 8 : 2]:
                del self._steps[old]

    def until(self, step: int) -> list[Point]:
        """The size of the update over the size of the weights, in steps up to and with ``step``."""
        return [
            Point(at, math.sqrt(moved / size), shown)
            for at, (moved, size, _, shown) in sorted(self._steps.items())
            if at <= step and size > 0
        ]


class Timeline:
    def __init__(self) -> None:
        self.names = Names()
        self.depth = Depth()
        self.losses = Series()
        self.norms = Series()
        self.rates = Series()
        self.moves = Moves()
        self.grads: dict[tuple[int, str], Level] = {}
        self.outputs: dict[Brick, Point] = {}
        self.dead: dict[Brick, Point] = {}
        self.inputs_finite = Series()
        self.outputs_looked = Series()
        self.weights_looked = Series()
        self.dtypes: set[str] = set()
        self.narrow_outputs: set[str] = set()
        self.clips = Series()
        self.updates = 0
        self.applied = Series()
        self.scaler_seen = ""
        self.scaler_steps = 0
        self.scaler_unscales = 0
        self.scales = Series()
        self.scaled_losses = Series()
        self.order: dict[tuple[int, int], list[str]] = {}
        self.exits: dict[int, Event] = {}
        self.steps: dict[int, int] = {}
        self.coordinates: dict[int, dict[str, int]] = {}
        self.ended: Event | None = None
        self.compiled = False
        self._handlers: dict[str, Callable[[Event], None] | None] = {}

    def feed(self, record: Record) -> None:
        if isinstance(record, Event):
            if record.kind in NAMING:
                self.names.feed(record)
            if record.rank >= 0:
                if record.step > self.steps.setdefault(record.rank, -1):
                    self.steps[record.rank] = record.step
                self._event(record)
            elif record.kind == "exited":
                self.ended = record
        elif isinstance(record, Sample):
            self._sample(record)
        elif isinstance(record, Span):
            self.depth.feed(record)

    def follow(self, many: Many) -> None:
        """What feeding them one by one comes to: each series is of one kind of event, and is taken by the column.

        Only what clipping and a scaler did to one step has an order of its own.
        """
        ordered = any(type(record) is Event and record.kind == "scaler" for record in many.others)
        for record in many.others if not ordered else many.records:
            if not ordered or type(record) is not Event or record.kind not in ("loss", "optimizer") or record.rank < 0:
                self.feed(record)
        columns = {kind: many.each(kind) for kind in ("loss", "optimizer", "clip") if kind != "clip" or not ordered}
        for events in columns.values():
            for rank in {event.rank for event in events}:
                last = max([event.step for event in events if event.rank == rank])
                self.steps[rank] = max(last, self.steps.get(rank, -1))
        self._losses(columns["loss"])
        self._updates(columns["optimizer"])
        self._clips(columns.get("clip", []))

    def _losses(self, events: Sequence[Event]) -> None:
        if any(event.fields.get("scale") is not None for event in events) or _kinds(events, "value") != {float}:
            for event in events:
                self._on_loss(event)
        else:
            values = [event.fields["value"] for event in events]
            rows = [(e.step, value, e) for e, value in zip(events, values, strict=True) if math.isfinite(value)]
            self.losses.extend(rows)

    def _updates(self, events: Sequence[Event]) -> None:
        rates: list[Any] = [event.fields.get("lr") for event in events]
        single = all(type(each) is list and len(each) == 1 and type(each[0]) is float for each in rates)
        if not single or any(event.fields.get("skipped") for event in events):
            for event in events:
                self._on_optimizer(event)
            return
        self.rates.raise_with([(event.step, rate[0], event) for event, rate in zip(events, rates, strict=True)])
        self.updates += len(events)
        self.applied.extend([(event.step, 1.0, event) for event in events])

    def _clips(self, events: Sequence[Event]) -> None:
        if _kinds(events, "norm") != {float}:
            for event in events:
                self._on_clip(event)
            return
        self.clips.extend([(event.step, event.fields["norm"], event) for event in events])
        for event in events:
            self._happened(event, "clip")

    def _event(self, event: Event) -> None:
        if event.kind not in self._handlers:
            self._handlers[event.kind] = getattr(self, f"_on_{event.kind}", None)
        handle = self._handlers[event.kind]
        if handle is not None:
            handle(event)

    def _on_run(self, event: Event) -> None:
        where = event.fields.get("coordinates")
        if isinstance(where, dict):
            self.coordinates[event.rank] = {str(name): value for name, value in where.items() if isinstance(value, int)}

    def _on_tensor(self, event: Event) -> None:
        self.dtypes.add(str(event.fields.get("dtype", "")))

    def _on_compile(self, event: Event) -> None:
        self.compiled = True

    def _on_loss(self, event: Event) -> None:
        value, scale = number(event.fields.get("value")), number(event.fields.get("scale"))
        if value is not None and math.isfinite(value):
            self.losses.add(event.step, value, event)
        if scale is not None and scale != 1.0:
            self.scaled_losses.add(event.step, scale, event)

    def _on_grad(self, event: Event) -> None:
        value = number(event.fields.get("l2"))
        if value is None or not math.isfinite(value):
            value = number(event.fields.get("absmax"))  # a finite 1e35 overflows an L2 norm
        scale = number(event.fields.get("scale")) or 1.0
        if value is not None and math.isfinite(value) and not event.fields.get("nonfinite"):
            divisor = 1.0 if event.fields.get("point") == USED or scale <= 0 else scale
            self.norms.raise_last(event.step, value / divisor, event)

    def _on_clip(self, event: Event) -> None:
        norm = number(event.fields.get("norm"))
        self.clips.add(event.step, math.nan if norm is None else norm, event)
        self._happened(event, "clip")

    def _on_optimizer(self, event: Event) -> None:
        rates = event.fields.get("lr")
        known = [rate for rate in map(number, rates) if rate is not None] if isinstance(rates, list) else []
        if known:
            self.rates.raise_last(event.step, max(known), event)
        if not event.fields.get("skipped"):
            self.updates += 1
            self.applied.add(event.step, 1.0, event)

    def _on_scaler(self, event: Event) -> None:
        self.scaler_seen = self.scaler_seen or event.id
        operation, scale = event.fields.get("op"), number(event.fields.get("scale"))
        self.scaler_steps += operation == "step"
        self.scaler_unscales += operation == "unscale"
        if operation == "unscale":
            self._happened(event, "unscale")
        if scale is not None and scale > 0:
            self.scales.add(event.step, scale, event)

    def _happened(self, event: Event, what: str) -> None:
        if len(self.order) < 4096 or (event.rank, event.step) in self.order:
            self.order.setdefault((event.rank, event.step), []).append(what)

    def _on_activation(self, event: Event) -> None:
        if event.fields.get("dtype") in ("float16", "bfloat16"):
            self.narrow_outputs.add(str(event.fields["dtype"]))
        if event.fields.get("inputs_finite") is True:
            self.inputs_finite.add(event.step, 1.0, event)

    def _on_exit(self, event: Event) -> None:
        self.exits[event.rank] = event

    def _sample(self, sample: Sample) -> None:
        finite = not (sample.nan or sample.inf)
        if sample.role in ("grad", "grad_local"):
            self._grad(sample, finite)
        elif sample.role == "activation":
            self._output(sample, finite)
        elif sample.role == "input" and finite and sample.nan == 0:
            self.inputs_finite.add(sample.step, 1.0, sample)
        elif sample.role == "weight" and finite and sample.nan == 0:
            self.weights_looked.raise_last(sample.step, 1.0, sample)
        if sample.role == "update" and sample.ratio and sample.l2 and math.isfinite(sample.ratio + sample.l2):
            self.moves.add(sample.step, sample.l2, sample.l2 / sample.ratio, sample.id)

    def _grad(self, sample: Sample, finite: bool) -> None:
        if sample.absmax is None or not finite or not math.isfinite(sample.absmax):
            return
        known = self.grads.get((sample.rank, sample.tensor))
        if known is not None:
            known.latest = sample
        elif len(self.grads) < _MOST_TENSORS:
            brick = self.names.tensor(sample.rank, sample.tensor).brick
            self.grads[sample.rank, sample.tensor] = Level(
                _unscaled(sample), brick if brick.path else sample.brick, sample
            )

    def _output(self, sample: Sample, finite: bool) -> None:
        if finite and sample.absmax is not None and math.isfinite(sample.absmax):
            point = Point(sample.step, sample.absmax, sample.id)
            self.outputs_looked.raise_last(sample.step, sample.absmax, sample)
            if len(self.outputs) < _MOST_TENSORS or sample.brick in self.outputs:
                self.outputs[sample.brick] = point
        if sample.zero_fraction == 1.0:
            self.dead[sample.brick] = Point(sample.step, 1.0, sample.id)
        else:
            self.dead.pop(sample.brick, None)

    def looked_at_outputs(self, step: int) -> Point | None:
        """Evidence that block outputs were looked at, and finite, in ``step``."""
        return next((point for point in self.outputs_looked if point.step == step), None)
