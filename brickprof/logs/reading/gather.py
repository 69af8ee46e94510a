"""From the items of a reader to a ``Log``: series over steps, facts, and what was left over.

Enters: blocks, facts and skipped lines, in the order of the file. Leaves: for each named number its series, in bounded
memory however long the file is. A series that grows too long is thinned: of each stretch its first, its last, its
lowest and its highest point stay, and so does every point where it stops being finite, or is finite again, with its
neighbours. How many points there were is known.

Steps: a column says which step a row is of. Where only some rows have one, the others are of the step that was told
last. Where none has, it is the epoch, if each row is of another one; else the number of the row. Where steps go back
and stay back, the run was resumed or begun anew: from that line on it is another attempt. One row that is late is only
that.

Two gatherings of one file, the second behind the first, add up (``absorb``): what they come to does not depend on who
read which of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brickprof.logs.reading import names
from brickprof.logs.reading.epochs import count_on
from brickprof.logs.reading.model import Block, Fact, Floats, Item, Skipped, Whole
from brickprof.logs.reading.order import Attempt, Track, attempts_of, begun_anew

if TYPE_CHECKING:
    import pandas as pd

MOST_POINTS = 16_384
_MOST_POINTS_OF_ALL = 2_000_000
_FEWEST_POINTS = 512
_MOST_FACTS = 2_000
"""Of one kind, from the beginning, and as many from the end."""
_MOST_EXAMPLES = 5
_MOST_SERIES = 2_000
_MOST_TRACKS = 4_000
_MOST_BLOCKS = 512
_FARTHEST_STEP = float(1 << 53)
_REGULAR = 0.1
_MOST_PAUSES = 512
LOG_TIME = "log time"
"""The name of what lines say about when they were written."""

Codes = NDArray[np.int8]


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
    """``eval`` where the rows are those of an evaluation; else empty."""

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

    def gaps(self) -> int:
        """How often steps are missing, of a series that is otherwise regular; 0 where that cannot be told."""
        apart = np.diff(self.last_attempts().steps)
        apart = apart[apart > 0]
        if self.count != len(self) or len(apart) < 3:
            return 0
        missing = int((apart > 1.5 * np.median(apart)).sum())
        return missing if missing <= max(1, _REGULAR * len(apart)) else 0


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
    """Rows of the same step as the row before, with the same names in it."""
    late: int = 0
    """Rows that came after a row of a later step, and were followed by a later one still."""
    damage: list[str] = field(default_factory=list)
    """What could not be read, in words."""
    clock: Series | None = None
    """When rows were written, in seconds, where a column or the lines say so; since 1970 if they tell the year."""

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

    @property
    def first_step(self) -> int:
        return min((int(series.steps.min()) for series in self.series.values() if len(series)), default=-1)

    def frame(self) -> pd.DataFrame:
        """A row a step, a column a series; what was done twice as it was done last."""
        import pandas as pd

        columns = {}
        for name, series in self.series.items():
            counted = series.last_attempts()
            column = pd.Series(counted.values, index=pd.Index(counted.steps, name="step"), name=name)
            columns[name] = column[~column.index.duplicated(keep="last")]
        return pd.DataFrame(columns).sort_index() if columns else pd.DataFrame(index=pd.Index([], name="step"))

    def points(self) -> pd.DataFrame:
        """A row a point: series, role, step, value, line, attempt, rank; repeated steps too."""
        import pandas as pd

        parts = [
            pd.DataFrame(
                {
                    "series": series.name, "role": series.role, "step": series.steps, "value": series.values,
                    "line": series.lines, "attempt": series.attempts, "rank": series.rank or 0,
                }
            )
            for series in self.series.values()
        ]  # fmt: skip
        wanted = ["series", "role", "step", "value", "line", "attempt", "rank"]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=wanted)

    def holds(self) -> list[dict[str, Any]]:
        """What each series holds: name, role, points, first and last step, gaps."""
        return [
            {
                "name": name, "role": series.role, "points": series.count, "first_step": int(series.steps.min()),
                "last_step": int(series.steps.max()), "gaps": series.gaps(), "rank": series.rank,
            }
            for name, series in self.series.items()
            if len(series)
        ]  # fmt: skip


# -- one series while it is read


class _Growing:
    """Columns: steps (or epochs), rows, values, lines, codes (see ``Gathering._steps``)."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Whole, Whole, Floats, Whole, Codes]] = []
        self.kept = 0
        self.count = 0

    def add(self, columns: tuple[Whole, Whole, Floats, Whole, Codes], count: int, most: int) -> None:
        self.blocks.append(columns)
        self.kept += len(columns[0])
        self.count += count
        if self.kept > 4 * most:
            self.thin(most)
        elif len(self.blocks) > _MOST_BLOCKS:
            self.blocks = [self.joined()]

    def thin(self, most: int) -> None:
        joined = self.joined()
        keep = worth_keeping(joined[2], most)
        self.blocks = [tuple(column[keep] for column in joined)]  # type: ignore[list-item]
        self.kept = len(keep)

    def joined(self) -> tuple[Whole, Whole, Floats, Whole, Codes]:
        """All of it in the order of the file: readers give the rows of a chunk by their names."""
        columns: Any = self.blocks[0]
        if len(self.blocks) > 1:
            columns = tuple(np.concatenate(list(column)) for column in zip(*self.blocks, strict=True))
        lines = columns[3]
        if (lines[1:] < lines[:-1]).any():
            order = np.argsort(lines, kind="stable")
            columns = tuple(column[order] for column in columns)
        return columns  # type: ignore[no-any-return]


def worth_keeping(values: Floats, most: int) -> Whole:
    """The places of at most about ``most`` points that show what all of them show."""
    count = len(values)
    if count <= most:
        return np.arange(count)
    stretch = -(-count // max(most // 4, 1))
    finite = np.isfinite(values)
    low, high = (
        (values, values) if finite.all() else (np.where(finite, values, np.inf), np.where(finite, values, -np.inf))
    )
    begins = np.arange(0, count, stretch)
    lowest, highest = _extremes(low, stretch, np.argmin), _extremes(high, stretch, np.argmax)
    ends = np.minimum(begins + stretch, count) - 1
    changes = np.flatnonzero(finite[1:] != finite[:-1])
    if len(changes) > most // 4:
        changes = np.concatenate([changes[: most // 8], changes[-most // 8 :]])
    around = np.concatenate([changes - 1, changes, changes + 1, changes + 2])
    keep = np.zeros(count, dtype=bool)
    for places in (begins, ends, lowest, highest, around[(around >= 0) & (around < count)], [0, count - 1]):
        keep[places] = True
    return np.flatnonzero(keep)


def _extremes(values: Floats, stretch: int, which: Callable[..., Any]) -> Whole:
    """Where the lowest or the highest value of each stretch is."""
    full = len(values) // stretch * stretch
    found: Whole = which(values[:full].reshape(-1, stretch), axis=1) + np.arange(0, full, stretch)
    return found if full == len(values) else np.append(found, full + which(values[full:]))


class _Facts:
    """Those of one kind: the first ones, and the last."""

    def __init__(self) -> None:
        self.first: list[Fact] = []
        self.last: deque[Fact] = deque(maxlen=_MOST_FACTS)

    def add(self, fact: Fact) -> None:
        (self.first if len(self.first) < _MOST_FACTS else self.last).append(fact)


# -- everything


class Gathering:
    """Takes items; ``log()`` says what they come to."""

    def __init__(self, path: str, format: str, roles: dict[str, str] | None = None) -> None:
        self.path, self.format = path, format
        self.damage: list[str] = []
        self.lines = 0
        """How many lines the source had, where that is known: so far apart lie the lines of what is absorbed."""
        self._roles = roles or {}
        self._growing: dict[tuple[str, int | None, str], _Growing] = {}
        self._tracks: dict[tuple[str, int | None], Track] = {}
        self._facts: dict[str, _Facts] = {}
        self._rows: dict[str, int] = {}
        self._kinds: list[str] = []
        self._steps_by: dict[str, int] = {}
        self._rows_in_all = 0
        self._unread = 0
        self._examples: list[tuple[int, str]] = []
        self._written: list[tuple[Whole, Floats]] = []

    def written(self, lines: Whole, seconds: Floats) -> None:
        """When some of the lines were written: of very many, those around pauses and a few others stay."""
        if len(lines) > MOST_POINTS:
            apart = np.abs(np.diff(seconds))
            longest = np.argsort(apart, kind="stable")[-_MOST_PAUSES:]
            some = np.arange(0, len(lines), -(-len(lines) // MOST_POINTS))
            keep = np.unique(np.concatenate([some, longest, longest + 1, [len(lines) - 1]]))
            lines, seconds = lines[keep], seconds[keep]
        self._written.append((lines, seconds))

    def take(self, items: Iterable[Item]) -> Gathering:
        for item in items:
            if isinstance(item, Block):
                self.block(item)
            elif isinstance(item, Fact):
                self._facts.setdefault(item.kind, _Facts()).add(item)
            else:
                self._skipped(item)
        return self

    def _skipped(self, item: Skipped) -> None:
        self._unread += item.count
        room = _MOST_EXAMPLES - len(self._examples)
        self._examples.extend(item.examples[: max(room, 0)])

    def role(self, name: str, kind: str = "") -> str:
        told = self._roles.get(name) or names.role(name)
        return names.role(f"eval {name}") if kind and told == "loss" else told

    @property
    def _most(self) -> int:
        """Points that a series may keep: fewer where there are very many series."""
        shared = _MOST_POINTS_OF_ALL // max(len(self._growing), 1)
        return max(_FEWEST_POINTS, min(MOST_POINTS, shared))

    def block(self, block: Block) -> None:
        if not len(block.lines):
            return
        self._rows_in_all += len(block.lines)
        kind = "eval" if names.evaluates(block.kind) else ""
        roles = {name: self.role(name) for name in block.values}
        by = next((name for name, role in roles.items() if role == "step"), None)
        known = np.abs(block.values[by]) < _FARTHEST_STEP if by is not None else np.zeros(len(block.lines), dtype=bool)
        if by is not None and known.any():
            keep = None if known.all() else known
            steps = _chosen(block.values[by], keep).astype(np.int64)
            self._steps_by[by] = self._steps_by.get(by, 0) + len(steps)
            self._add(block, kind, roles, keep, steps, np.zeros(len(steps), dtype=np.int64), 0)
        if not known.all():
            self._without_steps(block, kind, roles, None if not known.any() else ~known)

    def _without_steps(self, block: Block, kind: str, roles: dict[str, str], keep: Any) -> None:
        count = len(block.lines) if keep is None else int(keep.sum())
        begin = self._rows.get(block.kind, 0)
        self._rows[block.kind] = begin + count
        rows = np.arange(begin, begin + count, dtype=np.int64)
        code = self._kind(block.kind)
        epoch = next((name for name, role in roles.items() if role == "epoch" and _whole(block.values[name])), None)
        if epoch is None:
            self._add(block, kind, roles, keep, rows, rows, -code)
        else:
            self._add(block, kind, roles, keep, _chosen(block.values[epoch], keep).astype(np.int64), rows, code)

    def _add(
        self, block: Block, kind: str, roles: dict[str, str], keep: Any, steps: Whole, rows: Whole, code: int
    ) -> None:
        """Rows of a block. Code 0: ``steps`` are steps; k: they are epochs, of rows that are numbered as the k-th
        kind; -k: they are nothing, and the rows' numbers are all there is."""
        lines = _chosen(block.lines, keep)
        codes = np.full(len(steps), code, dtype=np.int8)
        if code >= 0:
            self._order(block, steps, lines, code)
        for name, values in block.values.items():
            if roles[name] == "step":
                continue
            key = name, block.rank, kind
            growing = self._growing.get(key)
            if growing is None:
                if len(self._growing) >= _MOST_SERIES:
                    continue
                growing = self._growing[key] = _Growing()
            growing.add((steps, rows, _chosen(values, keep), lines, codes), len(steps), self._most)

    def _kind(self, kind: str) -> int:
        """Rows without steps are numbered by their kind; of very many kinds, the last ones together."""
        if kind not in self._kinds and len(self._kinds) < 100:
            self._kinds.append(kind)
        return self._kinds.index(kind) + 1 if kind in self._kinds else 100

    def _order(self, block: Block, steps: Whole, lines: Whole, code: int) -> None:
        key = f"{block.kind}|{'' if code else 'step'}|{','.join(sorted(block.values))}", block.rank
        track = self._tracks.get(key)
        if track is None:
            if len(self._tracks) >= _MOST_TRACKS:
                return
            trained = not names.evaluates(block.kind)
            losses = frozenset(name for name in block.values if trained and self.role(name) == "loss")
            first = int(steps[0]), int(lines[0])
            track = self._tracks[key] = Track(code, block.rank, losses, first, first)
        else:
            track.meets(int(steps[0]), int(lines[0]))
        track.rows(steps, lines)

    # -- two parts of one file

    def thinned(self) -> Gathering:
        """With no more points than a series may keep: what a piece of a file sends to whoever joins them."""
        for growing in self._growing.values():
            if growing.kept > self._most:
                growing.thin(self._most)
        return self

    def absorb(self, other: Gathering) -> None:
        """What stands behind all this in the file."""
        lines = self.lines
        for key, track in other._tracks.items():
            mine = self._tracks.get(key)
            if mine is not None:
                mine.absorb(track, lines)
            elif len(self._tracks) < _MOST_TRACKS:
                self._tracks[key] = track.shifted(lines)
        self._absorb_series(other, lines)
        for kind, facts in other._facts.items():
            ours = self._facts.setdefault(kind, _Facts())
            for fact in (*facts.first, *facts.last):
                ours.add(replace(fact, line=fact.line + lines))
        for kind, count in other._rows.items():
            self._rows[kind] = self._rows.get(kind, 0) + count
        for by, count in other._steps_by.items():
            self._steps_by[by] = self._steps_by.get(by, 0) + count
        self._rows_in_all += other._rows_in_all
        self._written += [(at + lines, seconds) for at, seconds in other._written]
        self._skipped(Skipped(other._unread, tuple((line + lines, text) for line, text in other._examples)))
        self.damage += [text for text in other.damage if text not in self.damage]
        self.lines += other.lines

    def _absorb_series(self, other: Gathering, lines: int) -> None:
        begins = np.array([0, *(self._rows.get(kind, 0) for kind in other._kinds)], dtype=np.int64)
        codes = np.array([0, *(self._kind(kind) for kind in other._kinds)], dtype=np.int8)
        for key, growing in other._growing.items():
            ours = self._growing.get(key)
            if ours is None:
                if len(self._growing) >= _MOST_SERIES:
                    continue
                ours = self._growing[key] = _Growing()
            steps, rows, values, at, code = growing.joined()
            kind = np.minimum(np.abs(code), len(begins) - 1)
            moved = rows + begins[kind]
            steps = np.where(code < 0, moved, steps)
            ours.add(
                (steps, moved, values, at + lines, (np.sign(code) * codes[kind]).astype(np.int8)),
                growing.count,
                self._most,
            )

    # -- what it comes to

    def log(self) -> Log:
        """What was gathered so far; it may be asked again after more."""
        numbered = [track for track in self._tracks.values() if track.code > 0]
        by_epoch = bool(numbered) and not self._steps_by and not any(track.repeated for track in numbered)
        ordered = [track for track in self._tracks.values() if track.code == 0 or by_epoch]
        attempts = attempts_of([*(back for track in ordered for back in track.ends()), *begun_anew(ordered)])
        facts = [fact for kept in self._facts.values() for fact in (*kept.first, *kept.last)]
        series = self._series(by_epoch, attempts)
        clock = self._clock(series, attempts)
        told = Log(
            self.path, self.format, {name: one for name, one in series.items() if one.role != "time"},
            sorted(facts, key=lambda fact: fact.line), attempts, self._rows_in_all, self._unread,
            list(self._examples), self._told_by(by_epoch),
            sum(track.repeated for track in ordered), sum(track.late for track in ordered), list(self.damage), clock,
        )  # fmt: skip
        return count_on(told)

    def _series(self, by_epoch: bool, attempts: list[Attempt]) -> dict[str, Series]:
        begins = np.array([attempt.line for attempt in attempts], dtype=np.int64)
        for growing in self._growing.values():
            if growing.kept > self._most:
                growing.thin(self._most)
        ruler, in_order = self._ruler(), self._in_order()
        found: dict[str, Series] = {}
        for (name, rank, kind), growing in self._growing.items():
            told, rows, values, lines, codes = growing.joined()
            for code, places in in_order.items():
                rows = np.where(np.abs(codes) == code, np.searchsorted(places, lines), rows)
            known = codes == 0
            if known.any():  # what has no step among what has one cannot be placed
                steps, values, lines = told[known], values[known], lines[known]
            elif ruler is not None:
                steps = ruler[1][np.maximum(np.searchsorted(ruler[0], lines, side="right") - 1, 0)]
            else:
                steps = np.where((codes > 0) & by_epoch, told, rows)
            of_attempt = np.searchsorted(begins, lines, side="right").astype(np.int64)
            one = Series(name, self.role(name, kind), steps, values, lines, of_attempt, growing.count, rank, kind)
            shown = _shown(one)
            found[shown if shown not in found else f"{kind or 'train'}/{shown}"] = one
        return found

    def _clock(self, found: dict[str, Series], attempts: list[Attempt]) -> Series | None:
        """What a column tells of the time; else when lines were written, over the steps they are of."""
        known = [series for series in found.values() if len(series)]
        told_by_column = [series for series in known if series.role == "time"]
        if told_by_column or not self._written or not known:
            return max(told_by_column, key=len, default=None)
        begins = np.array([attempt.line for attempt in attempts], dtype=np.int64)
        ruler = max(known, key=lambda series: (series.role == "loss", len(series)))
        lines = np.concatenate([at for at, _ in self._written])
        seconds = np.concatenate([at for _, at in self._written])
        place = np.searchsorted(ruler.lines, lines, side="right") - 1
        told = place >= 0
        steps, lines = ruler.steps[place[told]], lines[told]
        of_attempt = np.searchsorted(begins, lines, side="right").astype(np.int64)
        return Series(LOG_TIME, "time", steps, seconds[told], lines, of_attempt, len(lines)) if told.any() else None

    def _in_order(self) -> dict[int, Whole]:
        """The lines of the rows that are only numbered, by their kind: a reader gives the rows of a chunk by their
        names, and they are numbered as they stand in the file. Not of very many, of which some were left out."""
        lines: dict[int, list[Whole]] = {}
        if any(growing.kept != growing.count for growing in self._growing.values()):
            return {}
        for growing in self._growing.values():
            _, _, _, at, codes = growing.joined()
            for code in np.unique(np.abs(codes[codes != 0])):
                lines.setdefault(int(code), []).append(at[np.abs(codes) == code])
        return {code: np.unique(np.concatenate(parts)) for code, parts in lines.items()}

    def _ruler(self) -> tuple[Whole, Whole] | None:
        """Lines and steps of the series that has most steps."""
        if not self._steps_by:
            return None
        best: tuple[Whole, Whole] | None = None
        for growing in self._growing.values():
            told, _, _, lines, codes = growing.joined()
            known = codes == 0
            if known.any() and (best is None or known.sum() > len(best[0])):
                best = lines[known], told[known]
        if best is None:
            return None
        order = np.argsort(best[0], kind="stable")
        return best[0][order], best[1][order]

    def _told_by(self, by_epoch: bool) -> str:
        counted = dict(self._steps_by)
        rows = sum(self._rows.values())
        if rows and not counted:
            told = "epoch" if by_epoch else "row"
            counted[told] = counted.get(told, 0) + rows
        return max(counted, key=lambda by: counted[by]) if counted else "row"


def _chosen(column: Any, keep: Any) -> Any:
    return column if keep is None else column[keep]


def _shown(series: Series) -> str:
    return f"{series.name}@{series.rank}" if series.rank else series.name


def _whole(values: Floats) -> bool:
    """Whether these are whole numbers: epochs that count, not parts of them."""
    return bool((np.abs(values) < _FARTHEST_STEP).all() and (values == np.floor(values)).all())
