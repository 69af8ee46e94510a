"""From the items of a reader to a ``Log``: series over steps, facts, and what was left over.

Enters: blocks, facts and skipped lines, in the order of the file. Leaves: for each named number its series, in bounded
memory however long the file is. A series that grows too long is thinned: of each stretch its first, its last, its
lowest and its highest point stay, and so does every point where it stops being finite, or is finite again, with its
neighbours. How many points there were is known.

Steps: a column says which step a row is of; else the epoch; else the number of the row. Where steps go back, the run
was resumed or begun anew: that is remembered as an attempt, and what was done twice counts as it was done last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from brickprof.logs.reading import names
from brickprof.logs.reading.model import Block, Fact, Floats, Item, Skipped, Whole

MOST_POINTS = 16_384
_MOST_FACTS = 10_000
_MOST_EXAMPLES = 5
_MOST_SERIES = 2_000
_BEHIND = 1


@dataclass(slots=True)
class Series:
    """One number over steps."""

    name: str
    role: str
    steps: Whole
    values: Floats
    lines: Whole
    attempts: Whole
    """Which attempt each point is of: 0, 1, ... ."""
    count: int = 0
    """Points in the log; fewer are kept where there were very many."""
    rank: int | None = None
    kind: str = ""

    def __len__(self) -> int:
        return len(self.steps)

    def last_attempts(self) -> Series:
        """The points that count: where a step was made again, the later one."""
        if not len(self) or self.attempts[-1] == self.attempts[0]:
            return self
        begins = {int(attempt): int(self.steps[self.attempts == attempt].min()) for attempt in np.unique(self.attempts)}
        keep = np.ones(len(self), dtype=bool)
        for attempt, begin in begins.items():
            keep &= ~((self.attempts < attempt) & (self.steps >= begin))
        return Series(
            self.name, self.role, self.steps[keep], self.values[keep], self.lines[keep], self.attempts[keep],
            self.count, self.rank, self.kind,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attempt:
    """The steps went back: from then on, another attempt."""

    number: int
    line: int
    stopped_at: int
    """The last step before."""
    goes_on_at: int


@dataclass(slots=True)
class Log:
    """One log, read."""

    path: str
    format: str
    series: dict[str, Series] = field(default_factory=dict)
    """By name; of other ranks than the first as ``name@rank``."""
    facts: list[Fact] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    rows: int = 0
    unread: int = 0
    """Lines that say nothing to the reader."""
    examples: list[tuple[int, str]] = field(default_factory=list)
    steps_by: str = "step"
    """What told the steps: the name of a column, ``epoch``, or ``row`` where nothing did."""
    repeated: int = 0
    """Rows of a step that had one already, with the same numbers in it."""
    damage: list[str] = field(default_factory=list)
    """What could not be read, in words."""

    def of_role(self, role: str) -> list[Series]:
        return [series for series in self.series.values() if series.role == role]

    @property
    def loss(self) -> Series | None:
        """The loss that is minimised; where no name tells which it is, the first."""
        losses = [series for series in self.of_role("loss") if not series.rank]
        main = names.main_loss(series.name for series in losses)
        return next((series for series in losses if series.name == main), losses[0] if losses else None)

    @property
    def last_step(self) -> int:
        return max((int(series.steps.max()) for series in self.series.values() if len(series)), default=-1)


class _Growing:
    """A series while it is read."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Whole, Floats, Whole, Whole]] = []
        self.kept = 0
        self.count = 0

    def add(self, steps: Whole, values: Floats, lines: Whole, attempts: Whole) -> None:
        self.blocks.append((steps, values, lines, attempts))
        self.kept += len(steps)
        self.count += len(steps)
        if self.kept > 4 * MOST_POINTS:
            self.thin()

    def thin(self) -> None:
        joined = self.joined()
        keep = worth_keeping(joined[1], MOST_POINTS)
        self.blocks = [tuple(column[keep] for column in joined)]  # type: ignore[list-item]
        self.kept = len(keep)

    def joined(self) -> tuple[Whole, Floats, Whole, Whole]:
        if len(self.blocks) == 1:
            return self.blocks[0]
        columns = zip(*self.blocks, strict=True)
        steps, values, lines, attempts = (np.concatenate(list(column)) for column in columns)
        return steps, values, lines, attempts


def worth_keeping(values: Floats, most: int) -> Whole:
    """The places of at most about ``most`` points that show what all of them show."""
    count = len(values)
    if count <= most:
        return np.arange(count)
    stretch = -(-count // max(most // 4, 1))
    padded = np.full(-(-count // stretch) * stretch, np.nan)
    padded[:count] = values
    rows = padded.reshape(-1, stretch)
    finite = np.isfinite(rows)
    begins = np.arange(len(rows)) * stretch
    lowest = np.where(finite, rows, np.inf).argmin(1) + begins
    highest = np.where(finite, rows, -np.inf).argmax(1) + begins
    ends = np.minimum(begins + stretch, count) - 1
    changes = np.flatnonzero(np.diff(np.isfinite(values).astype(np.int8)))
    if len(changes) > most:
        changes = np.concatenate([changes[: most // 2], changes[-most // 2 :]])
    around = np.concatenate([changes - 1, changes, changes + 1, changes + 2])
    found = np.unique(np.concatenate([begins, ends, lowest, highest, around, [0, count - 1]]))
    return found[(found >= 0) & (found < count)]


class Gathering:
    """Takes items; ``log()`` says what they come to."""

    def __init__(self, path: str, format: str, roles: dict[str, str] | None = None) -> None:
        self.log_ = Log(path, format)
        self._roles = roles or {}
        self._growing: dict[tuple[str, int | None], _Growing] = {}
        self._last: dict[tuple[str, int | None], int] = {}
        self._attempt = 0
        self._rows: dict[str, int] = {}
        self._steps_by: dict[str, int] = {}

    def take(self, items: Iterable[Item]) -> Gathering:
        for item in items:
            if isinstance(item, Block):
                self.block(item)
            elif isinstance(item, Fact):
                if len(self.log_.facts) < _MOST_FACTS:
                    self.log_.facts.append(item)
            else:
                self._skipped(item)
        return self

    def _skipped(self, item: Skipped) -> None:
        self.log_.unread += item.count
        room = _MOST_EXAMPLES - len(self.log_.examples)
        self.log_.examples.extend(item.examples[: max(room, 0)])

    def role(self, name: str) -> str:
        return self._roles.get(name) or names.role(name)

    def block(self, block: Block) -> None:
        count = len(block.lines)
        if not count:
            return
        self.log_.rows += count
        roles = {name: self.role(name) for name in block.values}
        steps = self._steps(block, roles)
        attempts = self._attempts(block, steps)
        for name, values in block.values.items():
            if roles[name] in ("step", "time"):
                continue
            key = name, block.rank
            growing = self._growing.get(key)
            if growing is None:
                if len(self._growing) >= _MOST_SERIES:
                    continue
                growing = self._growing[key] = _Growing()
            growing.add(steps, values, block.lines, attempts)

    def _steps(self, block: Block, roles: dict[str, str]) -> Whole:
        """The step of each row."""
        by = next((name for name, role in roles.items() if role == "step"), None)
        if by is None:
            whole = [name for name, role in roles.items() if role == "epoch" and _whole(block.values[name])]
            by = whole[0] if whole else None
        if by is not None and np.isfinite(block.values[by]).all():
            self._steps_by[by] = self._steps_by.get(by, 0) + len(block.lines)
            return block.values[by].astype(np.int64)
        begin = self._rows.get(block.kind, 0)
        self._rows[block.kind] = begin + len(block.lines)
        self._steps_by["row"] = self._steps_by.get("row", 0) + len(block.lines)
        return np.arange(begin, begin + len(block.lines), dtype=np.int64)

    def _attempts(self, block: Block, steps: Whole) -> Whole:
        """Rows of one kind and rank whose steps go back belong to another attempt."""
        key = f"{block.kind}|{','.join(sorted(block.values))}", block.rank
        last = self._last.get(key)
        before = np.concatenate([[steps[0] if last is None else last], steps[:-1]])
        back = np.flatnonzero(steps < before - (_BEHIND if block.rank is None else 0))
        attempts = np.full(len(steps), self._attempt, dtype=np.int64)
        for place in back:
            self._attempt += 1
            attempts[place:] = self._attempt
            at = int(steps[place])
            self.log_.attempts.append(Attempt(self._attempt, int(block.lines[place]), int(before[place]), at))
            for other, known in self._last.items():
                self._last[other] = min(known, at)
        self._last[key] = int(steps[-1])
        return attempts

    def log(self) -> Log:
        """What was gathered so far; it may be asked again after more."""
        log = self.log_
        log.series = {}
        for (name, rank), growing in self._growing.items():
            if growing.kept > MOST_POINTS:
                growing.thin()
            steps, values, lines, attempts = growing.joined()
            shown = f"{name}@{rank}" if rank else name
            log.series[shown] = Series(name, self.role(name), steps, values, lines, attempts, growing.count, rank)
        log.steps_by = max(self._steps_by, key=lambda by: self._steps_by[by]) if self._steps_by else "row"
        return log


def _whole(values: Floats) -> bool:
    """Whether these are whole numbers that grow: epochs that count, not parts of them."""
    return bool(
        np.isfinite(values).all() and (values == np.floor(values)).all() and len(np.unique(values)) == len(values)
    )
