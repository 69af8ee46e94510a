"""JSON lines, many at a time.

Enters: bytes that are whole lines. Leaves: the numbers of the lines in columns, and the places of the lines that have
to be looked at one by one. A trainer writes the same keys in the same order again and again: a line without its numbers
is a layout, and all lines of one layout are read at once.

    {"step": 12, "loss": 2.25, "host": "a"}         a line
    {"step": |, "loss": |, "host": "|"}             its layout: four literals, and three slots between them

A literal is found by its first quote: the quotes of all lines are known, and the n-th quote of a line belongs to the
n-th quote of its layout. A line is of a layout if each literal stands where it should, byte by byte, if each slot of a
number begins like one, and if no slot of a word does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brickprof.logs.reading import incidents, names, rows
from brickprof.logs.reading.model import Floats, Whole
from brickprof.logs.reading.numbers import PLAIN
from brickprof.logs.reading.objects import LONGEST_LIST
from brickprof.logs.reading.words import WORD, Words, stands, words_of
from brickprof.run.columns import values

SETTINGS = frozenset({"config", "args", "hparams", "hyperparameters", "hyper_parameters", "cfg", "settings", "params"})
"""Keys under which a line states what the run was started with."""
MESSAGES = frozenset({
    "message", "msg", "text", "error", "exception", "exc_info", "exc", "traceback", "stack", "stack_trace",
})  # fmt: skip
"""Keys under which a line says something in words."""
_MOST_DEEP = 8
_LONGEST_KEY = 100
_QUOTE, _NEWLINE = ord('"'), ord("\n")
_LONGEST_LITERAL = 4096
_LONGEST_NUMBER = 64
_LONGEST_LINE = 64 << 10
_MOST_KNOWN = 64
_MOST_NEW = 32
_MOST_SLOTS = 512
_WORTH = 4
"""Lines that a layout should have on average, to be worth its while."""
_STRING = re.compile(rb'"([^"\\]*(?:\\[^"][^"\\]*)*)"')
_NUMBER = re.compile(PLAIN + rb"|[+-]?(?:NaN|nan|Infinity|inf)")
_SCALAR = re.compile(rb"(\s*:\s*)([-+.\w]+)([\s},]*)")
_LIST = re.compile(rb"(\s*:\s*\[)(.*)(\][\s},]*)", re.DOTALL)
_BEHIND_KEY = re.compile(rb"\s*:\s*(?:\{\s*(?:\}[\s},]*)?)?")
_BEHIND_WORD = re.compile(rb"[\s},]*")
_DATE = re.compile(rb"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d")
_BEGINS = np.zeros(256, dtype=bool)
_BEGINS[list(b"0123456789+-.NnIi")] = True
_LIKE_NUMBER = np.zeros(256, dtype=bool)
_LIKE_NUMBER[list(b"0123456789+-.")] = True
_LIKE_NAN = np.zeros(256, dtype=bool)
_LIKE_NAN[list(b"NnIi")] = True


@dataclass(frozen=True, slots=True)
class _Literal:
    text: bytes
    quote: int
    """Which quote of the line is the first in it; -1: none, it ends the line."""
    before: int
    """Bytes in it before that quote."""
    words: Words


@dataclass(frozen=True, slots=True)
class _Slot:
    name: str
    """Empty of a word, which is not read."""
    dash: int = -1
    """Of a date: where a dash or a colon stands in it."""
    anything: bool = False
    """A list, which is not looked at."""
    count: int = 0
    """Of a list of numbers: how many."""


@dataclass(frozen=True, slots=True)
class Layout:
    quotes: int
    literals: tuple[_Literal, ...]
    slots: tuple[_Slot, ...]
    constants: tuple[tuple[str, float], ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Columns:
    places: Whole
    """Of which lines of the chunk."""
    values: dict[str, Floats]
    kind: str


class Lines:
    """The lines of a chunk, and where their quotes stand."""

    def __init__(self, chunk: bytes, expected: Layout | None = None) -> None:
        """Where all lines are as ``expected``, they need not be looked for."""
        self.padded = chunk + bytes(_LONGEST_LITERAL)
        self.data = np.frombuffer(self.padded, dtype=np.uint8)
        seen = self.data[: len(chunk)]
        self.quotes = np.flatnonzero(seen == _QUOTE)
        if expected is not None and self._as_expected(expected, chunk):
            return
        ends = np.flatnonzero(seen == _NEWLINE)
        self.ends = ends if chunk.endswith(b"\n") else np.append(ends, len(chunk))
        self.begins = np.concatenate([[0], self.ends[:-1] + 1])
        self.first = np.searchsorted(self.quotes, self.begins)
        self.counts = np.diff(self.first, append=len(self.quotes))

    def _as_expected(self, layout: Layout, chunk: bytes) -> bool:
        """Whether each line has the quotes of this layout, and begins as far before its first one."""
        count = len(self.quotes) // layout.quotes
        if not count or count * layout.quotes != len(self.quotes) or not chunk.endswith(b"\n"):
            return False
        self.begins = self.quotes[:: layout.quotes] - layout.literals[0].before
        self.ends = np.append(self.begins[1:], len(chunk)) - 1
        newlines = np.count_nonzero(self.data[: len(chunk)] == _NEWLINE)
        if newlines != count or self.begins[0] != 0 or not (self.data[self.ends] == _NEWLINE).all():
            return False
        self.first = np.arange(count, dtype=np.int64) * layout.quotes
        self.counts = np.full(count, layout.quotes, dtype=np.int64)
        return bool((self.quotes[layout.quotes - 1 :: layout.quotes] < self.ends).all())

    def __len__(self) -> int:
        return len(self.ends)

    def line(self, place: int) -> bytes:
        return self.padded[self.begins[place] : self.ends[place]]

    def quotes_of(self, places: Whole, count: int) -> Whole:
        """The places of all quotes of lines that have ``count`` each."""
        if len(places) * count == len(self.quotes):
            return self.quotes.reshape(len(places), count)
        picked: Whole = self.quotes[self.first[places][:, None] + np.arange(count)]
        return picked


class Layouts:
    """The layouts of a file; what one chunk taught serves the next."""

    def __init__(self) -> None:
        self._known: list[Layout] = []

    @property
    def expected(self) -> Layout | None:
        """The layout of the next lines, where all so far are of one."""
        return self._known[0] if len(self._known) == 1 else None

    def read(self, lines: Lines) -> tuple[list[Columns], Whole]:
        """Columns, and the places of the lines that are of no layout."""
        found: list[Columns] = []
        alone: list[int] = []
        left = np.arange(len(lines))
        for layout in tuple(self._known):
            left = self._take(lines, layout, left, found)
        made = taken = 0
        while len(left) and made < _MOST_NEW + taken // _WORTH:
            layout_or_none = layout_of(lines.line(int(left[0])))
            made += 1
            before = len(left)
            if layout_or_none is not None:
                self._known = [layout_or_none, *self._known][:_MOST_KNOWN]
                left = self._take(lines, layout_or_none, left, found)
            if len(left) == before:
                alone.append(int(left[0]))
                left = left[1:]
            else:
                taken += before - len(left)
        return found, np.sort(np.concatenate([np.array(alone, dtype=np.int64), left]))

    def _take(self, lines: Lines, layout: Layout, left: Whole, found: list[Columns]) -> Whole:
        """What is left when the lines of ``layout`` are taken out."""
        fitting = left[lines.counts[left] == layout.quotes]
        if not len(fitting):
            return left
        columns = _columns(lines, layout, fitting)
        if columns is None:
            return left
        found.append(columns)
        rest = np.ones(len(lines), dtype=bool)
        rest[columns.places] = False
        return left[rest[left]]


def layout_of(line: bytes) -> Layout | None:
    """The layout of a line; None of one that has to be looked at by itself."""
    strings = list(_STRING.finditer(line)) if len(line) <= _LONGEST_LINE else []
    if not strings or line.count(b'"') != 2 * len(strings) or len(strings) > _MOST_SLOTS:
        return None
    leaves = _leaves(line)
    if leaves is None or any(_speaks(path) and incidents.speaks(str(value).encode()) for path, value in leaves):
        return None
    cuts: list[tuple[int, int]] = []
    slots: list[_Slot] = []
    constants: list[tuple[str, float]] = []
    kind = next((rows.kind_of(value) for path, value in leaves if _marks(path) and isinstance(value, str)), "")
    order = iter(leaves)
    for string, end in zip(strings, [*(each.start() for each in strings[1:]), len(line)], strict=True):
        behind = line[string.end() : end]
        if _BEHIND_WORD.fullmatch(behind) and not behind.lstrip().startswith(b":"):
            path, value = next(order, ((), None))
            slot = _word_slot(path, value, string.group(1))
            if slot is None:
                return None
            if not _marks(path) and not _speaks(path):
                cuts.append(string.span(1))
                slots.append(slot)
        elif scalar := _SCALAR.fullmatch(behind):
            path, value = next(order, ((), None))
            if _NUMBER.fullmatch(scalar.group(2)):
                cuts.append((string.end() + scalar.start(2), string.end() + scalar.end(2)))
                slots.append(_Slot("/".join(path)))
            elif isinstance(value, bool) and names.role("/".join(path)) in ("skipped", "nonfinite"):
                constants.append(("/".join(path), float(value)))
        elif listed := _LIST.fullmatch(behind):
            path, value = next(order, ((), None))
            slot = _list_slot("/".join(path), value)
            if slot is None:
                return None
            cuts.append((string.end() + listed.start(2), string.end() + listed.end(2)))
            slots.append(slot)
        elif not _BEHIND_KEY.fullmatch(behind):
            return None
    if next(order, None) is not None:
        return None
    literals = tuple(_literals(line, cuts))
    if max(len(literal.text) for literal in literals) > _LONGEST_LITERAL - WORD:
        return None
    return Layout(2 * len(strings), literals, tuple(slots), tuple(constants), kind)


def _word_slot(path: tuple[str, ...], value: Any, text: bytes) -> _Slot | None:
    """The slot of a value in quotes; None where it cannot be told whether it is a number."""
    if not isinstance(value, str):
        return None
    if _NUMBER.fullmatch(text):
        return _Slot("/".join(path))
    if _DATE.match(text):
        return _Slot("", 4 if text[4:5] == b"-" else 2)
    first = text[:1]
    doubtful = (first and first in b"0123456789+-.") or (first and first in b"NnIi" and len(text) in (3, 8))
    return None if doubtful else _Slot("")


def _list_slot(name: str, value: Any) -> _Slot | None:
    """The slot of what stands between brackets; None where the name promises numbers and there are others."""
    if names.role(name) == "other":
        return _Slot("", anything=True)
    plain = isinstance(value, list) and all(isinstance(one, float) or str(one).lstrip("-").isdigit() for one in value)
    return _Slot(name, count=len(value)) if plain and 0 < len(value) <= LONGEST_LIST else None


def _marks(path: tuple[str, ...]) -> bool:
    return len(path) == 1 and path[0] in rows.MARKERS


def _speaks(path: tuple[str, ...]) -> bool:
    """Whether this is a message: lines of one layout say the same, and what they say is no incident."""
    return len(path) == 1 and path[0] in MESSAGES


def _leaves(line: bytes) -> list[tuple[tuple[str, ...], Any]] | None:
    """The values of a line in their order, each with the keys that lead to it; None of lists and settings."""
    try:
        pairs = json.loads(line, object_pairs_hook=_Pairs, parse_int=str)
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, _Pairs) or any(key in SETTINGS or key == "type" for key, _ in pairs):
        return None
    found: list[tuple[tuple[str, ...], Any]] = []
    stack: list[tuple[tuple[str, ...], Any]] = [((), pairs)]
    while stack:
        path, held = stack.pop()
        if isinstance(held, _Pairs):
            if len(path) > _MOST_DEEP or any(not key or len(key) > _LONGEST_KEY or key == "_type" for key, _ in held):
                return None
            stack.extend(((*path, key), one) for key, one in reversed(held))
        else:
            found.append((path, held))
    return found if len(found) <= _MOST_SLOTS else None


class _Pairs(list[tuple[str, Any]]):
    """An object with its keys in their order, also those that come twice."""


def _literals(line: bytes, cuts: list[tuple[int, int]]) -> Iterator[_Literal]:
    """What stands between the slots, from the begin of the line to its end."""
    begin = 0
    for start, end in [*cuts, (len(line), len(line))]:
        text = line[begin:start]
        before = text.find(b'"')
        yield _Literal(text, line.count(b'"', 0, begin) if before >= 0 else -1, max(before, 0), words_of(text))
        begin = end


def _columns(lines: Lines, layout: Layout, places: Whole) -> Columns | None:
    """The numbers of those of the lines at ``places`` that are of this layout."""
    places, starts = _matching(lines, layout, places)
    spans = [
        (start + len(literal.text), closed)
        for literal, start, closed in zip(layout.literals, starts, starts[1:], strict=False)
    ]
    good = np.ones(len(places), dtype=bool)
    for slot, span in zip(layout.slots, spans, strict=True):
        if not slot.anything:
            long = _LONGEST_NUMBER * max(slot.count, 1)
            good &= span[1] - span[0] < long if slot.name else _fits(lines, slot, *span)
    places, spans = _only(good, places, spans)
    parsed = _parsed(lines, layout, spans) if len(places) else None
    if parsed is None and len(places):
        good = np.ones(len(places), dtype=bool)
        for slot, span in zip(layout.slots, spans, strict=True):
            if not slot.anything:
                good &= _fits(lines, slot, *span)
        places, spans = _only(good, places, spans)
        parsed = _parsed(lines, layout, spans) if len(places) else None
    if parsed is None:
        return None
    constants = {name: np.full(len(places), value) for name, value in layout.constants}
    return Columns(places, constants | parsed, layout.kind)


def _only(
    good: NDArray[np.bool_], places: Whole, spans: list[tuple[Whole, Whole]]
) -> tuple[Whole, list[tuple[Whole, Whole]]]:
    if good.all():
        return places, spans
    return places[good], [(opened[good], closed[good]) for opened, closed in spans]


def _matching(lines: Lines, layout: Layout, places: Whole) -> tuple[Whole, list[Whole]]:
    """The lines in which every literal stands in its place, and the places of all literals."""
    quotes = lines.quotes_of(places, layout.quotes)
    begins, ends = lines.begins[places], lines.ends[places]
    starts = [
        quotes[:, literal.quote] - literal.before if literal.quote >= 0 else ends - len(literal.text)
        for literal in layout.literals
    ]
    good = (starts[0] == begins) & (starts[-1] + len(layout.literals[-1].text) == ends)
    for literal, here, there in zip(layout.literals, starts, starts[1:], strict=False):
        good &= here + len(literal.text) <= there
    if not good.all():
        places, starts = places[good], [start[good] for start in starts]
    good = np.ones(len(places), dtype=bool)
    for literal, start in zip(layout.literals, starts, strict=True):
        good &= stands(literal.words, lines.padded, start)
    if not good.all():
        places, starts = places[good], [start[good] for start in starts]
    return places, starts


def _fits(lines: Lines, slot: _Slot, opened: Whole, closed: Whole) -> NDArray[np.bool_]:
    """Whether a number begins like a number, and a word like a word."""
    first, length = lines.data[opened], closed - opened
    good: NDArray[np.bool_]
    if slot.name:
        good = _BEGINS[first] & (length > 0)
    elif slot.dash >= 0:
        there = lines.data[opened + slot.dash]
        good = (length > slot.dash) & ((there == ord("-")) | (there == ord(":")))
    else:
        good = ~(_LIKE_NUMBER[first] | (_LIKE_NAN[first] & ((length == 3) | (length == 8)))) | (length == 0)
    return good


def _parsed(lines: Lines, layout: Layout, spans: list[tuple[Whole, Whole]]) -> dict[str, Floats] | None:
    """The numbers in the slots; None where one is not a number after all."""
    import pyarrow as pa

    wanted = [(slot.name, span) for slot, span in zip(layout.slots, spans, strict=True) if slot.name and not slot.count]
    lists = [(slot, span) for slot, span in zip(layout.slots, spans, strict=True) if slot.count]
    listed: dict[str, Floats] = {}
    for slot, (opened, closed) in lists:
        found = _parsed_list(lines, slot, opened, closed)
        if found is None:
            return None
        listed |= found
    if not wanted:
        return listed
    rows_, slots = len(wanted[0][1][0]), len(wanted)
    ends = np.empty(2 * rows_ * slots + 1, dtype=np.int32)
    offsets = ends[:-1].reshape(rows_, 2 * slots)
    for at, (_, (opened, closed)) in enumerate(wanted):
        offsets[:, 2 * at], offsets[:, 2 * at + 1] = opened, closed
    ends[-1] = ends[-2]
    every_other = np.full(-(-offsets.size // 8), 0b01010101, dtype=np.uint8)  # between numbers is what separates them
    cells = pa.StringArray.from_buffers(
        offsets.size, pa.py_buffer(ends), pa.py_buffer(lines.padded), pa.py_buffer(every_other), offsets.size // 2
    )
    try:
        numbers = np.frombuffer(cells.cast(pa.float64()).buffers()[1], np.float64, offsets.size)[::2]
    except pa.ArrowInvalid:
        return None
    columns = np.ascontiguousarray(numbers.reshape(rows_, slots).T)
    return {name: columns[at] for at, (name, _) in enumerate(wanted)} | listed


def _parsed_list(lines: Lines, slot: _Slot, opened: Whole, closed: Whole) -> dict[str, Floats] | None:
    """The numbers of a list in each line, as a column each; None where not all lists are as long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        parts = pc.split_pattern(_cells(lines.padded, opened, closed), ",")
        if not (values(pc.list_value_length(parts)) == slot.count).all():
            return None
        numbers = values(pc.utf8_trim_whitespace(parts.flatten()).cast(pa.float64())).reshape(-1, slot.count)
    except pa.ArrowInvalid:
        return None
    each = [slot.name] if slot.count == 1 else [f"{slot.name}/{place}" for place in range(slot.count)]
    return {name: np.ascontiguousarray(numbers[:, place]) for place, name in enumerate(each)}


def _cells(data: bytes, starts: Whole, ends: Whole) -> Any:
    """What stands from these places to those, as strings of Arrow."""
    import pyarrow as pa

    cells = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    bounds = np.zeros(len(cells) + 1, dtype=np.int32)
    np.cumsum([len(cell) for cell in cells], out=bounds[1:])
    held = [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(cells))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(cells), held).cast(pa.string())
