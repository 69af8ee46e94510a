"""Values that are not finite, as records tell of them.

Enters: one record at a time, with the names learned so far. Leaves: an ``Anomaly`` for each thing in it
that is not finite. Nothing is judged here: whether a sighting is damage depends on what happened to it
afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from brickprof.bricks import Brick
from brickprof.records import Event, Sample
from brickprof.rules.causality import Anomaly, Stage
from brickprof.rules.names import Names, number, whole

USED = "step"
"""The point of a ``grad`` event at which gradients are as the optimizer uses them; others come before."""

_ROLES = {
    "grad_local": Stage.BACKWARD, "grad": Stage.BACKWARD, "weight": Stage.WEIGHTS,
    "activation": Stage.FORWARD, "input": Stage.DATA,
}  # fmt: skip


_ABOUT = ("dtype", "inputs_finite", "absmax", "inside", "operations")
KINDS = frozenset({"loss", "clip", "grad", "weight", "activation", "batch"})
"""The kinds of events that may tell of one."""


def in_event(event: Event, names: Names) -> Iterable[Anomaly]:
    if event.kind == "loss":
        return _loss(event)
    if event.kind == "clip":
        return _clip(event)
    if event.kind == "grad":
        used = event.fields.get("point") == USED
        return _listed(event, names, Stage.OPTIMIZER if used else Stage.BACKWARD)
    if event.kind == "weight":
        return _listed(event, names, Stage.WEIGHTS)
    if event.kind in ("activation", "batch"):
        return _counted(event, names)
    return ()


def in_sample(sample: Sample, names: Names) -> Iterator[Anomaly]:
    stage = _ROLES.get(sample.role)
    if stage is None or not (sample.nan or sample.inf):
        return
    tensor = names.tensor(sample.rank, sample.tensor)
    yield Anomaly(
        stage, sample.step, sample.micro, sample.rank, sample.brick, tensor.name, sample.nan or 0,
        sample.inf or 0, sample.numel, sample.id, sample.time_ns,
        {"dtype": tensor.dtype, "trainable": tensor.trainable},
    )  # fmt: skip


def _loss(event: Event) -> tuple[Anomaly, ...]:
    value = number(event.fields.get("value"))
    if value is None or math.isfinite(value):
        return ()
    return (Anomaly(
        Stage.LOSS, event.step, whole(event.fields.get("micro")), event.rank, nan=int(math.isnan(value)),
        inf=int(math.isinf(value)), numel=1, evidence=event.id, order=event.time_ns,
        details={name: event.fields.get(name) for name in ("value", "scale", "grad_fn", "dtype", "site")},
    ),)  # fmt: skip


def _clip(event: Event) -> tuple[Anomaly, ...]:
    norm = number(event.fields.get("norm"))
    if norm is None or math.isfinite(norm):
        return ()
    return (Anomaly(
        Stage.CLIP, event.step, rank=event.rank, nan=int(math.isnan(norm)), inf=int(math.isinf(norm)),
        evidence=event.id, order=event.time_ns, details={"norm": norm},
    ),)  # fmt: skip


def _listed(event: Event, names: Names, stage: Stage) -> Iterator[Anomaly]:
    listed = event.fields.get("nonfinite")
    for item in listed if isinstance(listed, list) else ():
        if not isinstance(item, dict):
            continue
        tensor = names.tensor(event.rank, item.get("tensor"))
        # Without block times, the later a parameter was registered the nearer it is to the loss.
        order = -tensor.number if stage in (Stage.BACKWARD, Stage.OPTIMIZER) else event.time_ns
        details = {"dtype": tensor.dtype, "trainable": tensor.trainable, "when": event.fields.get("when")}
        # Weights that were broken before a step's own update were broken by the step before it.
        step = event.step - 1 if details["when"] == "before" else event.step
        yield Anomaly(
            stage, step, whole(event.fields.get("micro")), event.rank, tensor.brick, tensor.name,
            whole(item.get("nan")), whole(item.get("inf")), whole(item.get("numel")) or tensor.numel,
            event.id, order, details,
        )  # fmt: skip


def _counted(event: Event, names: Names) -> Iterator[Anomaly]:
    fields = event.fields
    nan, inf = whole(fields.get("nan")), whole(fields.get("inf"))
    # An output that was summed on a device comes without counts: that it is listed says enough.
    uncounted = event.kind == "activation" and fields.get("nan") is None and fields.get("inf") is None
    if not (nan or inf or uncounted) or fields.get("phase") == "eval":
        return
    brick: Brick | None = names.brick(event.rank, fields.get("brick"))
    stage = Stage.DATA if event.kind == "batch" else Stage.FORWARD
    details: dict[str, Any] = {name: fields.get(name) for name in _ABOUT}
    yield Anomaly(
        stage, event.step, whole(fields.get("micro")), event.rank, brick, "", nan, inf,
        whole(fields.get("numel")), event.id, event.time_ns, details,
    )  # fmt: skip
