"""Evidence ids turned back into records.

Enters: an id that a diagnosis cites or a person types. Leaves: the records it names.

    event:17@0                  one event, by its seq and rank (the launch's own have rank -1)
    span:120@0                  one span
    grad:212:embed.weight@0     one sample: role, step, tensor, rank
    g:212   w:212:embed         samples of a step, of those tensors whose name has that word
    loss:213   clip:1-212       events of a kind, of one step or of several
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from brickprof.errors import UsageError
from brickprof.records import ROLES, Event, Record
from brickprof.run.parts import Part
from brickprof.text import clean

SHORT = {"g": "grad", "gl": "grad_local", "w": "weight", "u": "update", "a": "activation", "i": "input"}

_BY_NUMBER = re.compile(r"(event|span):(\d+)(?:@(-?\d+))?")
_BY_STEP = re.compile(r"(\w+):(-?\d+)(?:-(\d+))?(?::(.*?))?(?:@(-?\d+))?", re.DOTALL)
_FORMS = "event:17@0, span:120@0, grad:212:embed.weight@0, g:212, w:212:embed, loss:213"


@dataclass(frozen=True, slots=True)
class _Asked:
    word: str
    first: int
    last: int
    name: str

    @property
    def role(self) -> str:
        return SHORT.get(self.word, self.word)


def find(parts: Iterable[Part], identity: str, *, qualified: bool) -> list[Record]:
    """The records that ``identity`` names, ordered by rank and time; none when nothing is there."""
    text = identity.strip()
    if match := _BY_NUMBER.fullmatch(text):
        chosen = [part for part in parts if match[3] is None or part.rank == int(match[3])]
        return [record for part in chosen for record in _by_number(part, match[1], int(match[2]))]
    match = _BY_STEP.fullmatch(text)
    if not match:
        raise UsageError(f"{clean(identity)} is no evidence id.", f"Ids look like {_FORMS}.")
    first = int(match[2])
    asked = _Asked(match[1], first, int(match[3] or first), match[4] or "")
    chosen = [part for part in parts if match[5] is None or part.rank == int(match[5])]
    return [record for part in chosen for record in _by_step(part, asked, qualified)]


def _by_number(part: Part, what: str, number: int) -> Iterable[Record]:
    import pyarrow.compute as pc

    if what == "event":
        return [event for event in part.events if event.seq == number]
    table = part.spans[0]
    return part.as_spans(table.filter(pc.equal(table["id"], number)))


def _by_step(part: Part, asked: _Asked, qualified: bool) -> list[Record]:
    found: list[Record] = [] if asked.name else list(_events(part, asked))
    if asked.role in ROLES:
        samples = list(part.as_samples(_sampled(part, asked), qualified=qualified))
        exact = [sample for sample in samples if sample.tensor == asked.name]
        found += exact or [
            sample for sample in samples if asked.name in sample.tensor or asked.name in sample.brick.path
        ]
    return found


def _events(part: Part, asked: _Asked) -> Iterable[Event]:
    return (event for event in part.events if event.kind == asked.word and asked.first <= event.step <= asked.last)


def _sampled(part: Part, asked: _Asked) -> object:
    import pyarrow.compute as pc

    table = part.samples[0]
    steps = pc.and_(pc.greater_equal(table["step"], asked.first), pc.less_equal(table["step"], asked.last))
    return table.filter(pc.and_(steps, pc.equal(table["role"], ROLES.index(asked.role))))
