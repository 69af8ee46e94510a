"""Whether steps go back: late rows, and runs that were resumed or begun anew.

Enters: the steps of rows, track by track: rows of one kind, with one set of names, of one rank. Leaves: where each
track went back, how many rows were late or told twice, and the attempts that all of them come to. A run that was begun
anew with other columns has another track: it is known by its loss, which one told before it and none goes on telling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from brickprof.logs.reading.model import Whole

_MOST_BACKS = 2_000
_MOST_COMPARED = 200
_BEHIND = 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """The steps went back: from then on, another attempt."""

    number: int
    line: int
    stopped_at: int
    """The last step before."""
    goes_on_at: int


@dataclass(frozen=True, slots=True)
class Back:
    """Between these two lines the steps of one track went back."""

    before_line: int
    line: int
    before: int
    at: int

    def shifted(self, lines: int) -> Back:
        return Back(self.before_line + lines, self.line + lines, self.before, self.at)


@dataclass(slots=True)
class Track:
    """Rows of one kind, with one set of names, of one rank: their steps are expected to grow."""

    code: int
    rank: int | None
    losses: frozenset[str]
    """The losses among the names."""
    first: tuple[int, int]
    """Step and line of the first row."""
    last: tuple[int, int]
    second: int | None = None
    """Step of the second row."""
    backs: list[Back] = field(default_factory=list)
    pending: Back | None = None
    """The last row went back; the next one tells whether it was only late."""
    repeated: int = 0
    late: int = 0

    @property
    def behind(self) -> int:
        """So many steps a row may be late and is not told: loggers that count from 0 and from 1 write in one file."""
        return _BEHIND if self.rank is None else 0

    def settle(self, step: int) -> None:
        """What the row that follows says about one that went back."""
        if self.pending is not None:
            if step > self.pending.before:
                self.late += 1
            else:
                self._note(self.pending)
            self.pending = None

    def _note(self, back: Back) -> None:
        if len(self.backs) < _MOST_BACKS:
            self.backs.append(back)

    def meets(self, step: int, line: int) -> None:
        """The next row, alone."""
        self.settle(step)
        self.second = step if self.second is None else self.second
        if step == self.last[0]:
            self.repeated += 1
        elif step < self.last[0] - self.behind:
            self.pending = Back(self.last[1], line, self.last[0], step)

    def rows(self, steps: Whole, lines: Whole) -> None:
        """Further rows behind those known: the first one was met already."""
        before, after = steps[:-1], steps[1:]
        if self.second is None and len(after):
            self.second = int(after[0])
        self.repeated += int((before == after).sum())
        back = np.flatnonzero(after < before - self.behind)
        if self.pending is not None and len(after):
            self.settle(int(after[0]))
        for place in back[: 2 * _MOST_BACKS]:
            found = Back(int(lines[place]), int(lines[place + 1]), int(before[place]), int(after[place]))
            self.pending = found
            if place + 1 < len(after):
                self.settle(int(after[place + 1]))
        self.last = int(steps[-1]), int(lines[-1])

    def absorb(self, other: Track, lines: int) -> None:
        self.meets(other.first[0], other.first[1] + lines)
        if other.second is not None:
            self.settle(other.second)
        for back in other.backs:
            self._note(back.shifted(lines))
        if other.pending is not None:
            self.pending = other.pending.shifted(lines)
        self.repeated += other.repeated
        self.late += other.late
        self.last = other.last[0], other.last[1] + lines

    def shifted(self, lines: int) -> Track:
        return replace(
            self,
            first=(self.first[0], self.first[1] + lines),
            last=(self.last[0], self.last[1] + lines),
            backs=[back.shifted(lines) for back in self.backs],
            pending=None if self.pending is None else self.pending.shifted(lines),
        )

    def ends(self) -> list[Back]:
        """Every place where it went back; the last row's too, unless rows of this track are late as a rule."""
        return [*self.backs, self.pending] if self.pending is not None and self.late <= len(self.backs) else self.backs


def attempts_of(backs: Iterable[Back]) -> list[Attempt]:
    """Restarts: as few lines as explain why each track went back where it did."""
    found: list[Attempt] = []
    for back in sorted(backs, key=lambda back: (back.line, back.before_line)):
        if found and back.before_line < found[-1].line:
            last = found[-1]
            found[-1] = replace(
                last, stopped_at=max(last.stopped_at, back.before), goes_on_at=min(last.goes_on_at, back.at)
            )
        else:
            found.append(Attempt(len(found) + 1, back.line, back.before, back.at))
    return found


def begun_anew(tracks: Sequence[Track]) -> Iterator[Back]:
    """Where a track begins behind the end of another one that told the same loss, at an earlier step."""
    told = sorted((track for track in tracks if track.losses), key=lambda track: track.first[1])[:_MOST_COMPARED]
    for track in told:
        others = [one for one in told if one.rank == track.rank and one.losses & track.losses and one is not track]
        begin, line = track.first
        before = [one for one in others if one.first[1] < line]
        if track.second is None or not before or any(one.last[1] > line for one in before):
            continue
        last = max(before, key=lambda one: one.last[1])
        if begin < last.last[0] - track.behind:
            yield Back(last.last[1], line, last.last[0], begin)
