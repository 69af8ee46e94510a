"""What a run is made of: bricks, and where in the machine they ran.

Enters: names given by the user's own modules and kernels. Leaves: small frozen values that every
other module speaks in.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


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
