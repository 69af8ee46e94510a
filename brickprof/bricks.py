"""What a run is made of: bricks, and where in the machine they ran.

Enters: names given by the user's own modules and kernels. Leaves: small frozen values that every
other module speaks in.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from brickprof.text import clean


class Kind(StrEnum):
    """The granularity of a brick."""

    KERNEL = "kernel"
    BLOCK = "block"
    TRANSFER = "transfer"
    HOST_SYNC = "host_sync"
    COLLECTIVE = "collective"
    OPTIMIZER = "optimizer"
    LOADER = "loader"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Brick:
    """One brick of the wall.

    ``path`` is the module's or kernel's own name ("blocks.3.mlp.gate"); ``model`` tells two models of
    one run apart ("Generator") and is shown only when a run has more than one.
    """

    kind: Kind
    path: str
    model: str = ""

    def name(self, *, qualified: bool = False) -> str:
        if qualified and self.model:
            return f"{self.model}.{self.path}" if self.path else self.model
        return self.path or self.model


@lru_cache(4096)
def title(brick: Brick, phase: str, *, qualified: bool = False) -> str:
    """What a brick is called in a phase, outside: the same in NVTX ranges, in OpenTelemetry spans and in every trace.

    It is the same in every step, so that other tools can group by it. A kernel is one kernel whoever launches it.
    """
    name = clean(brick.name(qualified=qualified) or str(brick.kind))
    if brick.kind is Kind.KERNEL or phase == "step":
        return name
    if brick.kind is Kind.TRANSFER:
        return f"{name} transfer"
    if brick.kind is Kind.HOST_SYNC:
        return f"{name} sync"
    if phase == "forward" and (brick.path or qualified):
        return name
    return phase if phase in (name, "forward") else f"{name} {phase}"


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a record comes from, structurally. A flat rank alone says too little to be accepted."""

    node: int = 0
    local_rank: int = 0
    dp: int = 0
    tp: int = 0
    pp: int = 0
    microbatch: int = 0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"coordinate {name} must be a whole number >= 0, not {value!r}")

    @classmethod
    def from_dict(cls, fields: Any) -> Coordinates:
        if not isinstance(fields, dict):
            raise ValueError(
                f"coordinates are structural (node, local_rank, dp, tp, pp, microbatch); "
                f"{fields!r} does not say where it ran"
            )
        return cls(**{name: fields[name] for name in cls.__slots__ if name in fields})

    def to_dict(self) -> dict[str, int]:
        return asdict(self)
