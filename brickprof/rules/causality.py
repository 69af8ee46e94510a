"""What comes before what inside a step.

Enters: anything that went wrong, with its step, its stage and its brick. Leaves: a key to sort by, so
that the first one is where it began. The order is causal, not the order of writing: a statistic copied
from a device is written steps after the thing it speaks of.

    data < forward (by depth) < loss < backward (by reverse depth) < unscale < clip < optimizer < weights
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from brickprof.bricks import Brick
from brickprof.records import Span

_LAST_MICRO = 1 << 30
_MOST_BRICKS = 20_000


class Stage(IntEnum):
    DATA = 0
    FORWARD = 1
    LOSS = 2
    BACKWARD = 3
    UNSCALE = 4
    CLIP = 5
    OPTIMIZER = 6
    WEIGHTS = 7


NAMES = {
    Stage.DATA: "data", Stage.FORWARD: "forward", Stage.LOSS: "loss", Stage.BACKWARD: "backward",
    Stage.UNSCALE: "unscale", Stage.CLIP: "clip", Stage.OPTIMIZER: "optimizer", Stage.WEIGHTS: "weights",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One value that is not finite, where it was seen."""

    stage: Stage
    step: int
    micro: int = 0
    rank: int = 0
    brick: Brick | None = None
    tensor: str = ""
    nan: int = 0
    inf: int = 0
    numel: int = 0
    evidence: str = ""
    order: int = 0
    """The order of writing, for what causality leaves open."""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def kinds(self) -> set[str]:
        """Which of nan and inf; neither when they were not counted."""
        return {name for name, count in (("nan", self.nan), ("inf", self.inf)) if count} or {"uncounted"}


class Depth:
    """How deep each block lies, learned from the order in which forwards ended."""

    def __init__(self) -> None:
        self._depth: dict[Brick, int] = {}

    def feed(self, span: Span) -> None:
        # The first forward of each block is enough.
        if span.phase != "forward" or span.brick in self._depth or len(self._depth) >= _MOST_BRICKS:
            return
        self._depth[span.brick] = span.end_ns

    def of(self, brick: Brick | None) -> int | None:
        """The depth of ``brick``, or of the watched block around it."""
        if brick is None or not self._depth:
            return None
        path = brick.path
        while True:
            for candidate in (Brick(brick.kind, path, brick.model), Brick(brick.kind, path)):
                if candidate in self._depth:
                    return self._depth[candidate]
            if not path:
                return None
            path = path.rpartition(".")[0]


def key(anomaly: Anomaly, depth: Depth) -> tuple[int, ...]:
    """Sorts anomalies by causality; the least one is the origin."""
    inside = anomaly.stage <= Stage.BACKWARD
    micro = anomaly.micro if inside else _LAST_MICRO
    deep = depth.of(anomaly.brick)
    place = (1, 0) if deep is None else (0, -deep if anomaly.stage in (Stage.BACKWARD, Stage.OPTIMIZER) else deep)
    if anomaly.details.get("inside"):  # of a whole forward, compiled code included, it was the first
        place = (0, -1)
    return (anomaly.step, micro, anomaly.stage, *place, anomaly.order)
