"""One drift: where an operation parted from itself or from the gold, and all that is needed to see it again.

Enters: the words of a replay and what was measured. Leaves: plain data that goes to JSON and back. ``id`` is made of
the replay's words alone, so that the same drift has the same id in every run and on every machine with that device.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brickprof.errors import UnreadableInput, UsageError
from brickprof.operators.bits import Mismatch, portable

GOLD = "gold"
FORWARD = "forward"
_REPLAYED = (
    "operator", "candidate", "reference", "transform", "case", "parameters", "sizes", "dtype", "direction", "device",
    "seed",
)  # fmt: skip
_NUMBERS = ("atol", "rtol", "max_error", "mean_error")
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Drift:
    operator: str
    candidate: str
    """own, torch, or package.module:function."""
    reference: str
    transform: str
    """T1 to T7, or gold: the accuracy of one problem."""
    case: str
    sizes: Mapping[str, int]
    dtype: str
    direction: str
    """forward, or gradient of ARGUMENT."""
    device: str
    seed: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    baseline_shapes: Shapes = field(default_factory=dict)
    variant_shapes: Shapes = field(default_factory=dict)
    atol: float = 0.0
    rtol: float = 0.0
    max_error: float = 0.0
    mean_error: float = 0.0
    mismatches: int = 0
    elements: int = 0
    first: Mismatch | None = None
    launches: Mapping[str, int] = field(default_factory=dict)
    note: str = ""

    @property
    def id(self) -> str:
        words = {name: _plain(getattr(self, name)) for name in _REPLAYED}
        return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:10]

    @property
    def relation(self) -> str:
        """A, accuracy, or I, invariance."""
        return "A" if self.transform == GOLD else "I"

    @property
    def command(self) -> str:
        """What to type to see it again without a file."""
        words = ["brickprof", "check", "operator", self.operator]
        words += [] if self.candidate == "own" else ["--candidate", self.candidate]
        words += [] if self.reference == "own" else ["--reference", self.reference]
        sizes = ",".join(f"{name}={size}" for name, size in self.sizes.items())
        words += ["--dtype", self.dtype, "--sizes", sizes, "--device", self.device, "--seed", str(self.seed)]
        words += [] if self.transform == GOLD else ["--transforms", self.transform]
        return shlex.join(words)

    def to_dict(self) -> dict[str, Any]:
        fields = {each.name: _plain(getattr(self, each.name)) for each in dataclasses.fields(self)}
        fields["first"] = self.first.to_dict() if self.first else None
        return {"id": self.id, "relation": self.relation, "command": self.command, **fields}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Drift:
        known = {each.name for each in dataclasses.fields(cls)}
        given = {name: value for name, value in fields.items() if name in known}
        try:
            given |= {name: float(given[name]) for name in _NUMBERS if name in given}
            given["first"] = Mismatch.from_dict(given["first"]) if given.get("first") else None
            for name in ("baseline_shapes", "variant_shapes"):
                given[name] = {each: tuple(shape) for each, shape in given.get(name, {}).items()}
            return cls(**given)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnreadableInput(f"a drift in this file is not what it should be: {error}.") from error


def find(document: object, identity: str) -> Drift:
    """The drift of a written judgement whose id is ``identity``, or begins with it."""
    listed = document.get("drifts") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise UnreadableInput("this file holds no drifts.", "Write one with: brickprof check operator -o FILE")
    drifts = [Drift.from_dict(each) for each in listed if isinstance(each, dict)]
    fitting = [drift for drift in drifts if identity and drift.id.startswith(identity)]
    if len({drift.id for drift in fitting}) == 1:
        return fitting[0]
    ids = ", ".join(dict.fromkeys(drift.id for drift in drifts)) or "none"
    raise UsageError(f"{identity!r} names {len(fitting)} of the drifts in this file.", f"There are: {ids}.")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return portable(value) if isinstance(value, float) else value
