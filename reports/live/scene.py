"""What one look at a run shows.

Enters: what ``brickprof.live`` has read so far. Leaves: plain data that reports draw; nothing here computes more than
a name for a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Diagnosis

STARTING, RUNNING, SILENT, ENDED, KILLED = "starting", "running", "silent", "ended", "killed"
NAN = math.nan


@dataclass(frozen=True, slots=True)
class Condition:
    """How a run is: one of the words above, and what is known about it."""

    word: str
    text: str = ""

    @property
    def over(self) -> bool:
        return self.word in (ENDED, KILLED)


@dataclass(frozen=True, slots=True)
class Point:
    """A stretch of steps: the last of them, the lowest and the highest value, and whether one was not finite."""

    step: int
    low: float
    high: float
    last: float
    odd: str = ""
    """"N" where one was NaN, else "I" where one was infinite."""


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: tuple[Point, ...] = ()
    start: int = 0
    """The first step."""

    def __bool__(self) -> bool:
        return bool(self.points)


@dataclass(frozen=True, slots=True)
class Heat:
    """log10 |grad| by layer and step. A cell is a number, "N" (NaN), "I" (Inf), "0" (all zero), or None: not looked."""

    layers: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    cells: tuple[tuple[float | str | None, ...], ...] = ()
    """One tuple for each layer."""
    rank: int = 0

    def __bool__(self) -> bool:
        return bool(self.steps)


@dataclass(frozen=True, slots=True)
class Rank:
    number: int
    step: int
    loss: float = NAN
    norm: float = NAN
    rate: float = NAN
    seconds: float = NAN
    """Of its last step."""
    doing: str = ""
    """The innermost open brick, and the phase."""
    quiet: float = 0.0
    """Seconds since its last sign of life."""
    state: str = "recording"
    overhead: float = NAN


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    utilisation: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: float | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scene:
    run_id: str
    name: str
    """Of its folder."""
    script: str = ""
    condition: Condition = Condition(STARTING)
    elapsed: float = 0.0
    step: int = 0
    loss: Series = Series("loss")
    norm: Series = Series("|grad|")
    seconds: Series = Series("seconds a step")
    heat: Heat = Heat()
    ranks: tuple[Rank, ...] = ()
    cards: tuple[Card, ...] = ()
    diagnosis: Diagnosis | None = None
    judged: str = ""
    """What is to be said of the diagnosis: how far it has come, or why there is none."""
    notes: tuple[str, ...] = ()
    """What could not be read, and what capture itself had to say."""
    read: float = 1.0
    """The share of the journal that has been read: of a long run, the first looks see only its beginning."""
    version: int = field(default=0, compare=False)
    """Rises whenever something has changed."""

    @property
    def first(self) -> Rank | None:
        return self.ranks[0] if self.ranks else None
