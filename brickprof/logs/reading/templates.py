"""The engine of all text formats: it learns the lines of a log and turns chunks of them into columns.

Enters: chunks of bytes. Leaves: blocks, facts in words, and what was left over. Nothing is configured: lines whose text
is the same but for the numbers in it are of one template, and a template is looked at once, when its first line comes
(see ``naming``). After that a chunk is matched as a whole, all its lines at once (see ``tokens``).

A line that is cut off, or that ran into another one, is no row. ``counting`` says which step a row is of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from brickprof.logs.reading import incidents
from brickprof.logs.reading.counting import Counting, Rows, Template
from brickprof.logs.reading.model import Block, Fact, Floats, Head, Item, Skipped, Whole
from brickprof.logs.reading.naming import HOLE, MEASURED, Column, Shape, shape
from brickprof.logs.reading.numbers import number
from brickprof.logs.reading.patterns import from_pattern
from brickprof.logs.reading.source import Part, Source
from brickprof.logs.reading.tokens import Cut, Cutter, plain
from brickprof.text import clean

__all__ = ["Engine", "Form", "TextReader", "from_pattern", "likely", "share", "stated"]

_MOST_TEMPLATES = 8_000
_MOST_NEW = 500
"""Templates that are looked at in one chunk: a text without a template has as many as lines."""
_OFTEN = 5
_MOST_OFTEN = 100
_MOST_KNOWN = 100_000
_MOST_AT_ONCE = 30_000
_LOOK_BACK = 256 << 10
_EXAMPLES = 5
_PACE = frozenset({"throughput", "step_seconds"})
_SURE = frozenset({"loss", "eval_loss"})
_RANKED = re.compile(rb"\[(?:default|rank|gpu|GPU|worker)[ _]?(\d+)\]:?|^(?:rank|gpu|worker)[ _]?(\d+)[:\]|]")
_BARS = re.compile(rb"\|[^|\w]*\||\[[=>.#\- ]{3,}\]|(?:\xe2\x94[\x80-\xbf]|\xe2\x96[\x80-\x9f]|\xe2\xa0[\x80-\xbf])+")
_MONTHS = re.compile(rb"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b(?= ?\0)")
_DAYS = re.compile(rb"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b,?(?= )")
_DIGIT = re.compile(rb"\d|\bnan\b")
_SPACES = re.compile(rb"\s+")
_TELLING = re.compile(
    rb"(?i)loss|lr\b|\bit/s|s/it\b|learning|norm|step|iter|epoch|acc|val|eval|train|tok|mfu|tps|ppl|perplex|scale|reward|memory|"
    rb"[\w)\]'\"]\s*[:=]\s*['\"\[(]*\0|\0 ?[A-Za-z_]\w* ?\0"
)

Spoken = Callable[[bytes, int], Iterator[Fact]]


@dataclass(frozen=True, slots=True)
class Form:
    """What a format knows better than the engine."""

    rename: Mapping[str, str] = field(default_factory=dict)
    """Names of columns, by what the engine calls them; an empty one is left out."""
    alone: frozenset[str] = frozenset()
    """Names that make a row of a line without a step, even one that comes only once."""
    spoken: Spoken | None = None
    """Facts that only this format states: it is asked about every line that is no row."""
    begins: re.Pattern[bytes] | None = None
    """What is above the last line like this, in the beginning of the file, is not the log."""
    generic: bool = True
    """Whether rows of names that mean nothing to us are rows."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A line without its numbers, as it stands in the file: what it is a line of, and which rank wrote it."""

    template: Template | None
    rank: int = -1


_NOTHING = _Known(None)


class Engine:
    """Takes chunks in order; what it learned of one helps with the next."""

    def __init__(self, form: Form | None = None) -> None:
        self.form = form or Form()
        self._known: dict[bytes, _Known] = {}
        self._templates: dict[bytes, Template] = {}
        self._often: list[Template] = []
        self._counting = Counting()
        self._cutter = Cutter()
        self._watch = incidents.Watch(self.form.spoken)
        self._shown = 0
        self._speaker: int | None = None

    def take(self, data: bytes, first_line: int = 1) -> list[Item]:
        found = self._cutter.cut(data, first_line)
        if not len(found):
            return []
        items: list[Item] = []
        taken = np.zeros(len(found), dtype=bool)
        rows = self._rows(found, taken)
        self._counting.count(rows)
        for part in _merged([part for part in rows if part.template.is_row and len(part.lines)]):
            self._who_speaks(part.ranks)
            items.extend(_blocks(part, self._speaker))
        left = np.flatnonzero(~taken)
        items.extend(self._watch.take(found, left))
        items.extend(self._skipped(found, left))
        return items

    def _who_speaks(self, ranks: Whole | None) -> None:
        """Often only one rank of all writes what is measured, and it is not the first: it speaks for all."""
        if self._speaker is None and ranks is not None and (ranks >= 0).any():
            self._speaker = int(ranks[ranks >= 0].min())

    def end(self) -> list[Item]:
        return list(self._watch.end())

    def forget_rows(self) -> None:
        """What was taken so far was only for learning."""
        self._shown = 0

    # -- templates

    def _rows(self, found: Cut, taken: NDArray[np.bool_]) -> list[Rows]:
        if not len(found.counted):
            return []
        known = self._learn(found)
        numbers: dict[int, int] = {}
        templates: list[Template] = []
        of = np.full(len(known), -1, dtype=np.int16)
        for place, one in enumerate(known):
            template = one.template
            if template is None or template.shape is None or not template.tells:
                continue
            if id(template) not in numbers:
                if len(templates) >= _MOST_AT_ONCE:
                    continue
                numbers[id(template)] = len(templates)
                templates.append(template)
            of[place] = numbers[id(template)]
        which = of[found.skeleton_of]
        order = np.argsort(which, kind="stable")
        ends = np.searchsorted(which[order], np.arange(len(templates) + 1))
        ranks = np.array([one.rank for one in known], dtype=np.int64)[found.skeleton_of]
        return [
            self._read(found, template, order[ends[number] : ends[number + 1]], ranks, taken)
            for number, template in enumerate(templates)
        ]

    def _learn(self, found: Cut) -> list[_Known]:
        """What is known of each skeleton in the chunk, when those that are new have been looked at."""
        counts = np.bincount(found.skeleton_of, minlength=len(found.skeletons)).tolist()
        fresh: dict[int, tuple[Template, int]] = {}
        known: list[_Known] = []
        room = len(self._templates) < _MOST_TEMPLATES
        unknown = (place for place, raw in enumerate(found.skeletons) if raw not in self._known)
        new = [place for place in unknown if _TELLING.search(found.skeletons[place])] if room else []
        for place in sorted(new, key=lambda place: -counts[place])[:_MOST_NEW]:
            line = found.counted[int(np.argmax(found.skeleton_of == place))]
            self._look(found.skeletons[place], found.text(int(line)))
        for raw, count in zip(found.skeletons, counts, strict=True):
            one = self._known.get(raw, _NOTHING)
            known.append(one)
            template = one.template
            if template is not None:
                if not template.seen:
                    fresh[id(template)] = template, fresh.get(id(template), (template, 0))[1] + count
                else:
                    template.seen += count
        for template, count in sorted(fresh.values(), key=lambda one: -one[1]):
            template.cut_off = template.shape is not None and self._begins_another(template, count)
            template.seen += count
            if template.is_row and count >= _OFTEN and len(self._often) < _MOST_OFTEN:
                self._often.append(template)
        return known

    def _look(self, raw: bytes, example: bytes) -> _Known:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        gaps, rank = _same(raw)
        key = HOLE.join(gap.strip() for gap in gaps).encode()
        template = self._templates.get(key)
        if template is None and len(self._templates) < _MOST_TEMPLATES:
            template = self._templates[key] = self._template(gaps, example)
        known = self._known[raw] = _Known(template, rank)
        return known

    def _template(self, gaps: tuple[str, ...], example: bytes) -> Template:
        made = Template(gaps, None)
        if incidents.speaks(example):
            return made
        seen = shape(gaps)
        if seen is None or (not seen.columns and seen.bar is None):
            return made
        seen = self._renamed(seen)
        made.kind = "eval" if seen.evaluates or (seen.has("eval_loss") and not seen.has("loss")) else "train"
        alone = any(column.name in self.form.alone for column in seen.columns)
        measured = seen.has(*(MEASURED - _PACE if seen.bar else MEASURED))
        counted = seen.step is not None or seen.epoch is not None
        named = seen.step is not None and not seen.bare and not seen.bar
        generic = self.form.generic and named and any(column.role == "other" for column in seen.columns)
        if (measured and (counted or seen.has(*_SURE, "quality"))) or alone or generic:
            made.shape = seen
            made.needs_two = not (alone or _is_sure(seen, gaps, counted))
        elif seen.bar is not None or _heads_an_epoch(seen):
            made.shape, made.only_counts = seen, True
        return made

    def _renamed(self, seen: Shape) -> Shape:
        rename = self.form.rename
        if not rename:
            return seen
        columns = tuple(
            Column(column.hole, rename.get(column.name, column.name), column.factor) for column in seen.columns
        )
        columns = tuple(column for column in columns if column.name)
        step = next((column for column in columns if seen.step is not None and column.hole == seen.step.hole), None)
        step = step or next((column for column in columns if column.role == "step"), None)
        return replace(seen, columns=columns, step=step)

    def _begins_another(self, template: Template, count: int) -> bool:
        """Whether it is the begin of lines that are otherwise longer: those few were cut off."""
        own = template.gaps
        for other in self._often:
            if len(other.gaps) > len(own) and other.seen >= 4 * count + 1:
                rest = other.gaps[len(own) - 1]
                if other.gaps[: len(own) - 1] == own[:-1] and rest.startswith(own[-1].strip(". ")):
                    return True
        return False

    # -- rows

    def _read(
        self, found: Cut, template: Template, places: Whole, ranks: Whole, taken: NDArray[np.bool_]
    ) -> Rows:  # fmt: skip
        """The rows of a template: those of ``found.counted`` at ``places``."""
        seen = template.shape
        assert seen is not None
        here, ranks = found.counted[places], ranks[places]
        if not found.whole and len(here) and here[-1] == len(found) - 1 and not _is_whole(found, here):
            here, ranks = here[:-1], ranks[:-1]
        values: dict[str, Floats] = {}
        bad = np.zeros(len(here), dtype=bool)
        for column in (seen.columns if template.is_row else _counters(seen)) if len(here) else ():
            read, none = found.values(here, column.hole)
            values[column.name] = read * column.factor if column.factor != 1.0 else read
            if none is not None:
                bad |= none
        if seen.rank is not None and len(here):
            said, none = found.values(here, seen.rank)
            ranks = np.where(np.isfinite(said) & (said >= 0), said, -1).astype(np.int64) if none is None else ranks
        if bad.any():
            here, ranks = here[~bad], ranks[~bad]
            values = {name: column[~bad] for name, column in values.items()}
        if values:
            taken[here] = True
        step = seen.step.name if seen.step is not None and seen.step.name in values else None
        weak = seen.bar is not None and seen.step is not None and seen.step.hole == seen.bar[0]
        return Rows(template, here, found.lines[here], values, ranks if (ranks >= 0).any() else None, step, weak)

    def _skipped(self, found: Cut, left: Whole) -> Iterator[Skipped]:
        lengths = found.begins[left + 1] - found.begins[left]
        left = left[lengths > 1]
        if not len(left):
            return
        examples = []
        for line in left[: 20 * _EXAMPLES]:
            text = found.text(int(line)).strip()
            if self._shown < _EXAMPLES and text:
                self._shown += 1
                examples.append((int(found.lines[line]), clean(text.decode("utf-8", "replace"), limit=200)))
        yield Skipped(len(left), tuple(examples))


def _same(raw: bytes) -> tuple[tuple[str, ...], int]:
    """The texts around the numbers when what may vary in them is taken out; and the rank that the line begins with."""
    rank = -1
    found = _RANKED.search(raw[:200])
    if found is not None:
        rank = int((found[1] or found[2])[:9])
        raw = raw[: found.start()] + b"[rank]" + raw[found.end() :]
    if b"|" in raw or b"[" in raw or b"\xe2" in raw:
        raw = _BARS.sub(_bar, raw)
    raw = _SPACES.sub(b" ", _MONTHS.sub(b"Mon", _DAYS.sub(b"Day", raw)).rstrip(b"\r\n"))
    return tuple(raw.decode("utf-8", "replace").split(HOLE)), rank


def _bar(found: re.Match[bytes]) -> bytes:
    drawn = found.group()
    if drawn.startswith(b"|"):
        return b"||" if (len(drawn) > 2 and drawn.strip(b"| ")) or len(drawn) > 6 else drawn
    return b"[]" if drawn.startswith(b"[") else b""


def _is_sure(seen: Shape, gaps: Sequence[str], counted: bool) -> bool:
    """Whether one line like this is enough; a setting, or a line of code, comes only once."""
    if counted:
        several = len({column.role for column in seen.columns} & (MEASURED - {"lr"})) > 1
        return seen.has(*_SURE) or (seen.has("quality") and not seen.bare) or several
    return seen.has("eval_loss") and "=" not in "".join(gaps)


def _heads_an_epoch(seen: Shape) -> bool:
    return bool(seen.columns) and all(column.role == "epoch" for column in seen.columns)


def _counters(seen: Shape) -> tuple[Column, ...]:
    """What a line that is no row still counts: the epoch that it heads, or the bar that it draws."""
    if seen.bar is not None:
        return (Column(seen.bar[0], "step"), Column(seen.bar[1], "total_steps")) if seen.bar_is_main else ()
    return tuple(column for column in seen.columns if column.role == "epoch") if _heads_an_epoch(seen) else ()


def _is_whole(found: Cut, here: Whole) -> bool:
    """Whether the last of these lines, which has no end, lacks nothing: others like it end the same way."""
    if len(here) < 2:
        return False
    if not found.ends_in_a_number(int(here[-1])):
        return True
    last, before = found.numbers(int(here[-1]))[-1], found.numbers(int(here[-2]))[-1]
    return b"." in last and len(last.split(b".")[-1]) == len(before.split(b".")[-1]) and b"e" not in last.lower()


def _merged(rows: list[Rows]) -> list[Rows]:
    """Rows of the same names are one table, in the order of the file, however many templates they came in."""
    tables: dict[tuple[str, ...], list[Rows]] = {}
    for part in rows:
        tables.setdefault((part.template.kind, *sorted(part.values)), []).append(part)
    return sorted((_one(parts) for parts in tables.values()), key=lambda part: int(part.index[0]))


def _one(parts: list[Rows]) -> Rows:
    first = parts[0]
    if len(parts) == 1:
        return first
    index = np.concatenate([part.index for part in parts])
    order = np.argsort(index, kind="stable")
    values = {name: np.concatenate([part.values[name] for part in parts])[order] for name in first.values}
    ranks = [np.full(len(part.index), -1) if part.ranks is None else part.ranks for part in parts]
    of_ranks = None if all(part.ranks is None for part in parts) else np.concatenate(ranks)[order]
    lines = np.concatenate([part.lines for part in parts])[order]
    return Rows(first.template, index[order], lines, values, of_ranks, first.step, first.weak)


def _blocks(part: Rows, speaker: int | None) -> Iterator[Block]:
    if part.ranks is None:
        yield Block(part.lines, part.values, None, part.template.kind)
        return
    for rank in np.unique(part.ranks):
        own = part.ranks == rank
        values = {name: column[own] for name, column in part.values.items()}
        of_all = rank < 0 or (rank == speaker and rank > 0)
        yield Block(part.lines[own], values, None if of_all else int(rank), part.template.kind)


# -- readers


def stated(pattern: str) -> Spoken:
    """Settings that stand one to a line: the pattern's first group is the name, its second the value."""
    compiled = re.compile(pattern.encode())

    def settings(line: bytes, number: int) -> Iterator[Fact]:
        found = compiled.match(line[:2000]) if len(line) < 20_000 else None
        if found is not None:
            name, text = (clean(group.decode("utf-8", "replace").strip()) for group in found.groups()[:2])
            yield Fact("setting", number, {"values": {name: _value(text)}})

    return settings


def _value(text: str) -> float | int | bool | str | None:
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    read = number(text)
    if read is None or not text[-1:].isdigit():
        return text
    return int(read) if read.is_integer() and text.lstrip("+-").isdigit() else read


def share(head: Head, *patterns: str, most: int = 400) -> float:
    """How large a part of the lines that hold a number is like one of these patterns."""
    shown = plain(head.start).replace(b"\r", b"\n").split(b"\n")[:most]
    lines = [line[:2000] for line in shown if _DIGIT.search(line)]
    compiled = [re.compile(pattern.encode()) for pattern in patterns]
    found = sum(any(pattern.search(line) for pattern in compiled) for line in lines)
    return found / len(lines) if lines else 0.0


def likely(head: Head, *patterns: str, at_least: float = 0.6) -> float:
    """How sure a format is that has lines like these, and others between them."""
    found = share(head, *patterns)
    return 0.0 if not found else at_least + (0.95 - at_least) * min(1.0, 2 * found)


class TextReader:
    """A reader of lines: a name, what its lines look like, and what its ``Form`` knows."""

    by_lines = True

    def __init__(
        self, name: str, title: str, sure: Callable[[Head], float], form: Form | None = None,
        roles: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.title = name, title
        self.roles: dict[str, str] = dict(roles or {})
        self._sure, self._form = sure, form or Form()

    def sniff(self, head: Head) -> float:
        return 0.0 if b"\0" in head.start[:4096] else self._sure(head)

    def read(self, source: Source) -> Iterator[Item]:
        engine = Engine(self._form)
        line = source.first_line
        _look_back(engine, source)
        begin = self._form.begins
        for chunk in source.chunks():
            if begin is not None and (source.part is None or source.part.start == 0):
                above, chunk = _above(chunk, begin)
                if above:
                    yield Skipped(above)
                line += above
            begin = None
            yield from engine.take(chunk, line)
            line += int(np.count_nonzero(np.frombuffer(chunk, np.uint8) == ord("\n")))
        yield from engine.end()


def _above(chunk: bytes, begin: re.Pattern[bytes]) -> tuple[int, bytes]:
    """How many lines are above the log itself, and the log."""
    found = None
    for found in begin.finditer(chunk):  # noqa: B007
        pass
    if found is None:
        return 0, chunk
    return chunk.count(b"\n", 0, found.end()), chunk[found.end() :]


def _look_back(engine: Engine, source: Source) -> None:
    """A part of a file is read as if all before it had been: by the file's beginning, and by what is right before."""
    part = source.part
    if part is None or part.start == 0:
        return
    start = max(part.start - _LOOK_BACK, 0)
    for begin, end in ((0, min(_LOOK_BACK, start)), (start, part.start)):
        data = b"".join(Source(source.path, Part(begin, end)).chunks()) if end > begin else b""
        data = data if begin == 0 else data[data.find(b"\n") + 1 :]
        whole = data[: data.rfind(b"\n") + 1]
        if whole:
            engine.take(whole)
    engine.forget_rows()
