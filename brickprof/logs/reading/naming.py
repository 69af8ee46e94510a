"""What the numbers of a line are called.

Enters: a line with its numbers taken out: the text before, between and behind them. Leaves: a ``Shape``: which numbers
are columns and under what name, which one is the rank that wrote the line, which one is the counter of a progress bar.
A name stands before its number (``lm loss: 2.46``, ``loss=0.1``, ``'loss': '2.5'``, ``iter 10``) or, where nothing
does, behind it (``27.3 tok/s``, ``37.3% bf16 MFU``). Times, logger names, levels and ranks at the begin of a line
belong to nobody's measurements.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from brickprof.logs.reading import names
from brickprof.logs.reading.numbers import UNITS

HOLE = "\0"
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_CLOCK = r"\0:\0:\0(?:[.,]\0)?"
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\[?\0-\0-\0[ T_]{_CLOCK} ?(?:Z|UTC|[+-]?\0(?::?\0)?)?\]?",
        rf"\[?\0[/.]\0[/.]\0,? {_CLOCK}\]?",
        rf"\[?(?:Day )?Mon \0,? (?:\0 )?{_CLOCK}(?: \w+)?(?: \0)?\]?",
        rf"\[?{_CLOCK}\]?(?= ?[|\[\]a-zA-Z-])",
        rf"[IWEF]\d{{4}} {_CLOCK}(?: \0)? [\w./-]+:\0\]",
        r"\[?NeMo [IWED]\b",
        rf"\[?{_LEVEL}\]?(?:\:[\w.]+\:|\s*[:|]|(?=\W)|$)",
        r"\[(?:[Rr]ank|RANK|GPU|gpu|[Ww]orker|[Pp]roc(?:ess)?)[ :=#]*(?P<rank>\0)(?:/\0)?\]:?",
        r"\[\0,(?P<rank>\0)\]<std(?:out|err)>:",
        r"(?:[Rr]ank|RANK)[ :=]*(?P<rank>\0)(?:/\0)?[:|\]]",
        r"\[rank\]:?",
        r"\[[\w./<>-]+\.(?:py|cc|cpp|cu|h)(?::\0)?(?::[\w<>.]+)?\]",
        r"[\w./<>-]+\.(?:py|cc|cpp|cu|h):\0(?:\]|:| -|(?= ))",
        r"[\w.]+:\0\]",
        r"[\w.]+:[\w<>.]+:\0 -",
        r"\([\w ]*pid=\0(?:, ip=\0)?\)",
        r"\[\0\](?= ?\[)",
        r"\[[A-Za-z][\w.\- ]*\](?!:? ?\0)",
        r"[|\-](?= )",
    )
)
_STAMP = re.compile(rf"\0-\0-\0[ T_]{_CLOCK}(?:Z|[+-]\0(?::?\0)?)?")
_MODULE = re.compile(r"[\w.]+(?: -| \||:)(?= )")
_LABEL = re.compile(r"\s*(?P<rank>\0):(?= )")
_BAR = re.compile(r"(?P<done>\0)/(?P<total>\0) ?\[(?:(?:\0:)?\0:\0|\?)<(?:(?:(?:\0:)?\0:)?\0|\?)?(?:,)?")
_PERCENT = re.compile(r"(?P<what>[^\0|]*?):? ?(\0)% ?\|[^\0|]*\| ?$")
_SEPARATED = re.compile(r"\s*['\"]?\s*(?::|=|->|=>)\s*$")
_OPENING = re.compile(r"[\s'\"\[({<~]*$")
_IN_PARENTHESES = re.compile(r"\s*\(([^()]{1,16})\)$")
_DELIMITERS = re.compile(r"[|,;{}\[\]()<>\t\"'!?:]|\s-+\s|\.\s|=>|->|\s/\s|^/")
_UNIT = re.compile(r" ?(%|[A-Za-zµ]+)(?![\w/])")
_RUNS_ON = re.compile(r"\.[A-Za-z]")
_BEHIND = re.compile(r"\s*([A-Za-z][\w/.]*(?: [A-Za-z][\w/]*){0,2})\s*(?=$|[|,;)\]}]|- )")
_RATE = re.compile(r" ?([A-Za-zµ]+)/([A-Za-z]+)(?=$|[\s|,;)\]}])")
_TIMES = frozenset({"ns", "us", "µs", "ms", "s", "sec", "secs", "seconds", "min", "mins", "minutes", "h", "hours"})
_OF = re.compile(r"\s*(?:/|of|out of)\s*$")
_QUALIFIERS = frozenset({
    "train", "training", "val", "valid", "validation", "eval", "test", "dev", "lm", "total", "avg", "mean", "running",
    "moving", "smooth", "smoothed", "global", "grad", "gradient", "learning", "loss", "actor", "critic", "policy",
    "value", "aux", "mtp", "step", "iter", "per",
})  # fmt: skip
_EVALUATES = frozenset({"val", "valid", "validation", "validating", "eval", "evaluation", "evaluating", "test"})
_BATCHES = frozenset({"batch", "batches", "minibatch", "train", "training"})
_COUNTERS = ("step", "epoch")
_LONGEST_NAME = 80
MEASURED = frozenset({
    "loss", "eval_loss", "lr", "grad_norm", "scale", "skipped", "nonfinite", "step_seconds", "throughput", "quality",
    "memory", "tokens",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    hole: int
    name: str
    factor: float = 1.0

    @property
    def role(self) -> str:
        return names.role(self.name)


@dataclass(frozen=True, slots=True)
class Shape:
    columns: tuple[Column, ...]
    rank: int | None = None
    """The hole that says which process wrote the line."""
    step: Column | None = None
    bar: tuple[int, int] | None = None
    """The holes of a progress bar's counter and of its end."""
    bar_is_main: bool = False
    """Whether the bar may be that of the training: nothing else is named before it."""
    evaluates: bool = False
    bare: bool = False
    """Nothing calls the step so: it is a number at the begin of the line, or a bar's."""

    @property
    def epoch(self) -> Column | None:
        return next((column for column in self.columns if column.role == "epoch"), None)

    def has(self, *roles: str) -> bool:
        return any(column.role in roles for column in self.columns)


@dataclass(slots=True)
class _Reading:
    """A line while its numbers are named."""

    pieces: list[str]
    used: set[int] = field(default_factory=set)
    """Holes that are spoken for."""
    columns: list[Column] = field(default_factory=list)
    inside: dict[int, str] = field(default_factory=dict)
    """Names by hole."""
    fraction: tuple[int, int] | None = None
    """A counter and its end that nothing names."""


def shape(gaps: Sequence[str]) -> Shape | None:
    """The shape of a line; None where its numbers make no sense as one row."""
    line = HOLE.join(gap.replace(HOLE, " ") for gap in gaps)
    start, rank = _prefix(line)
    reading = _Reading(list(gaps))
    skipped = line[:start].count(HOLE)
    reading.used.update(range(skipped))
    if skipped or start:
        reading.pieces[skipped] = line[start:].split(HOLE, 1)[0]
    for stamp in _STAMP.finditer(line, start):
        _take_out(reading, line, stamp.start(), stamp.end())
    bar, main = _bar(line, reading)
    for hole in range(skipped, len(gaps) - 1):
        if hole not in reading.used:
            _name(reading, hole)
    label = _LABEL.match(line) if rank is None else None
    bare = not any(column.role == "step" for column in reading.columns)
    step = _step(reading, skipped, bar, main)
    if step is not None and label is not None and step.hole != 0:
        rank = 0
        reading.columns = [column for column in reading.columns if column.hole != 0]
    if _doubled(reading.columns):
        return None
    evaluates = _evaluates(line, start, reading)
    columns = tuple(_of_evaluation(column) if evaluates else column for column in _distinct(reading.columns))
    if step is not None:
        step = next(column for column in columns if column.hole == step.hole)
        columns = step, *(column for column in columns if column is not step)
    return Shape(columns, rank, step, bar, main, evaluates, bare)


def _prefix(line: str) -> tuple[int, int | None]:
    """Where what the logger writes before each line ends, and the hole of the rank, if it says one."""
    place, rank, known = 0, None, False
    while True:
        while place < len(line) and line[place] == " ":
            place += 1
        for pattern in _PREFIXES:
            found = pattern.match(line, place)
            if found and found.end() > place:
                break
        else:
            found = _MODULE.match(line, place) if known else None
            known = False
            if found is None or names.role(found.group().rstrip(" -|:")) != "other":
                return place, rank
        if "rank" in pattern.groupindex and found.re is pattern:
            rank = line.count(HOLE, 0, found.start("rank"))
        known = known or HOLE in found.group() or found.re is not _MODULE
        place = found.end()


def _take_out(reading: _Reading, line: str, begin: int, end: int) -> int:
    """What stands from ``begin`` to ``end`` is no measurement; its first hole."""
    first, last = line.count(HOLE, 0, begin), line.count(HOLE, 0, end)
    reading.used.update(range(first, last))
    reading.pieces[last] = line[end:].split(HOLE, 1)[0]
    return first


def _bar(line: str, reading: _Reading) -> tuple[tuple[int, int] | None, bool]:
    """A progress bar in the line: its numbers are no measurements."""
    found = _BAR.search(line)
    if found is None:
        return None, False
    done = _take_out(reading, line, found.start(), found.end())
    before = _PERCENT.search(line[: found.start()])
    main = not line[: found.start()].strip()
    if before is not None:
        reading.used.add(line.count(HOLE, 0, before.start(2)))
        what = names.words(before["what"])
        main = not what or bool({"train", "training", "epoch", "epochs", "step", "steps", "iteration"} & {*what})
        if {"eval", "evaluating", "evaluation", "validation", "val", "test"} & {*what}:
            main = False
    return (done, done + 1), main


def _name(reading: _Reading, hole: int) -> None:
    left, right = reading.pieces[hole], reading.pieces[hole + 1]
    factor, rest = _unit(right)
    if rest is None or ":" in (left, right):  # part of a word, or of 1:23:45
        return
    reading.pieces[hole + 1] = rest
    if _OF.fullmatch(left):
        _of(reading, hole)
        return
    name, times = _before(left)
    if name is not None and rest == right and right[:1].isalpha():
        return  # another text ran into it
    if name is None:
        name, times = _behind(right, left, hole + 2 == len(reading.pieces))
    if name is None:
        return
    inside = left.rfind("(") > left.rfind(")") and left.rfind("(") < left.rfind(name)
    if inside and hole - 1 in reading.inside and len(name.split()) == 1:
        name = f"{reading.inside[hole - 1]} {name}"
    if factor == UNITS["m"] and right.startswith("m") and {"time", "eta", "elapsed", "wall"} & {*names.words(name)}:
        factor = UNITS["min"]
    reading.inside[hole] = name
    reading.columns.append(Column(hole, name, factor * times))


def _of(reading: _Reading, hole: int) -> None:
    """A number behind a slash: how many there are of what was counted before."""
    before = reading.inside.get(hole - 1)
    if before is None:
        if hole - 1 not in reading.used and _alone(reading, hole - 1):
            reading.fraction = reading.fraction or (hole - 1, hole)
    elif names.role(before) == "step" or {*names.words(before)} <= _BATCHES:
        reading.columns[-1] = Column(hole - 1, before if names.role(before) == "step" else "step")
        reading.columns.append(Column(hole, "total_steps"))
    elif names.role(before) != "epoch":
        reading.columns.pop()  # 98 of 100 is not 98


def _alone(reading: _Reading, hole: int) -> bool:
    """Whether nothing names this number, and the line counts with it: it begins it, or stands behind the epoch."""
    ahead = reading.inside.get(hole - 1, "")
    return not reading.pieces[hole].strip(" []():,|") and (names.role(ahead) == "epoch" or not reading.inside)


def _unit(right: str) -> tuple[float, str | None]:
    """What the number is multiplied with, and the text behind its unit; None where the number is part of a word."""
    found = _UNIT.match(right)
    if found is not None:
        word = found[1]
        spaced = right[0] == " "
        known = UNITS.get(word) or UNITS.get(word.lower()) or (1e9 if word == "G" else None)
        if known is not None and not (spaced and len(word) == 1 and word not in "%s"):
            return known, right[found.end() :]
        if not spaced and word.lower() == "x":
            return 1.0, right[found.end() :]
    if _RUNS_ON.match(right) or (right[:1].isalpha() and _BEHIND.match(right) is None):
        return 1.0, None
    return 1.0, right


def _before(left: str) -> tuple[str | None, float]:
    """The name that stands before a number, and the unit that it says."""
    text = _OPENING.sub("", left)
    separated = _SEPARATED.search(text)
    if separated is None:
        return (_spoken(_last_piece(text)), 1.0) if text and (left != text or text[-1:] in "_rpnh") else (None, 1.0)
    text = text[: separated.start()]
    times = 1.0
    unit = _IN_PARENTHESES.search(text)
    if unit is not None:
        times = UNITS.get(unit[1], 1.0)
        text = text[: unit.start()]
    name = _last_piece(text)
    words = name.split()
    if len(words) > 1 and "=" in separated.group():
        name = _spoken(name) or words[-1]
    elif len(words) > 6:
        name = " ".join(words[-3:])
    return (name[:_LONGEST_NAME] or None), times


def _last_piece(text: str) -> str:
    return " ".join(_DELIMITERS.split(text)[-1].split()).strip(" '\"*#_-/.~")


def _spoken(piece: str) -> str | None:
    """The name at the end of words that no colon sets off: ``the train loss`` is ``train loss``."""
    words = piece.split()
    if not words or not re.search(r"[A-Za-z]", words[-1]):
        return None
    if [word.lower() for word in words[-2:]] == ["time", "cost"]:
        return " ".join(words[-2:])  # what it costs is time, and no loss
    for count in (1, 2, 3):
        name = " ".join(words[-count:])
        role = names.role(name)
        if role in _COUNTERS:
            return name
        if role != "other" and count <= len(words):
            while count < min(len(words), 3) and words[-count - 1].lower() in _QUALIFIERS:
                count += 1
            return " ".join(words[-count:])
    return words[-1] if len(words) == 1 else None


def _behind(right: str, left: str, last: bool) -> tuple[str | None, float]:
    """The name that stands behind a number that none stands before, and the unit in it."""
    attached = _RATE.match(right)
    if attached is not None:
        what, per = attached[1], attached[2]
        if what in _TIMES:
            return (f"{what}/{per} time", UNITS[what]) if names.role(f"{per} time") == "step_seconds" else (None, 1.0)
        return (f"{what}/{per}" if names.role(f"{what}/{per}") != "other" else None), 1.0
    unit = _UNIT.match(right)
    if unit is not None and (unit[1] in UNITS or unit[1].lower() in UNITS):
        right = right[unit.end() :]
        if unit[1] in _TIMES:
            alone = left.strip()[-1:] in ("|", ",", ";") and (not right.strip() or right.strip()[0] in "|,;")
            return ("step time" if alone else None), 1.0
    name = _BEHIND.match(right)
    if name is None or (name.end() == len(right) and not last):
        return None, 1.0
    return (name[1] if names.role(name[1]) not in ("other", "step", "epoch") else None), 1.0


def _step(reading: _Reading, first: int, bar: tuple[int, int] | None, main: bool) -> Column | None:
    """The column that counts: the one called so, else a bare number at the begin of the line, else a bar's."""
    steps = [column for column in reading.columns if column.role == "step"]
    if bar is not None and main and reading.columns:
        column = Column(bar[0], "step")  # a step that is said within a bar is often rounded: 3.2e+4
        reading.columns = [other for other in reading.columns if other.name != "step"]
        reading.columns[:0] = [column, Column(bar[1], "total_steps")]
        return column
    if steps:
        best = [column for column in steps if "global" in names.words(column.name)]
        return (best or steps)[0]
    if reading.fraction is not None and reading.columns:
        column = Column(reading.fraction[0], "step")
        reading.columns[:0] = [column, Column(reading.fraction[1], "total_steps")]
        return column
    pieces = reading.pieces
    if first in reading.used or first >= len(pieces) - 1 or first in reading.inside or not reading.columns:
        return None
    if pieces[first].strip(" [(") or not re.match(r"[ \]),:|;]", pieces[first + 1]):
        return None
    column = Column(first, "step")
    reading.columns.insert(0, column)
    return column


def _doubled(columns: list[Column]) -> bool:
    """Two of the same counter: two lines that ran into each other."""
    steps = [column.name for column in columns if column.role == "step"]
    return len(set(steps)) < len(steps)


def _distinct(columns: list[Column]) -> list[Column]:
    seen: dict[str, int] = {}
    kept = []
    for column in columns:
        seen[column.name] = seen.get(column.name, 0) + 1
        again = seen[column.name]
        kept.append(column if again == 1 else Column(column.hole, f"{column.name} {again}", column.factor))
    return kept


def _evaluates(line: str, start: int, reading: _Reading) -> bool:
    """Whether the line says, before its first measurement, that it is about an evaluation."""
    measured = [column for column in reading.columns if column.role in MEASURED]
    if not measured:
        return False
    first = min(measured, key=lambda column: column.hole)
    ahead = HOLE.join(line.split(HOLE)[: first.hole + 1])
    said = " ".join(re.findall(r"\[[A-Za-z ]+\]", line[:start])) + " " + ahead[start:]
    named = first.name if first.name in said else first.name.split()[-1]
    said = said[: said.rfind(named)] if named in said else said
    return bool(_EVALUATES & {*names.words(re.sub(r"\S*[/.]\S*", " ", said))})


def _of_evaluation(column: Column) -> Column:
    if column.role != "loss":
        return column
    return Column(column.hole, f"validation {column.name}", column.factor)
