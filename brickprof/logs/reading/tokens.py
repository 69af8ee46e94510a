"""A chunk of text cut into lines, and each line into its numbers and what stands between them.

Enters: bytes. Leaves: ``Cut``: of every line its text without its numbers (its skeleton), each such text once, and
where the numbers are, without looking at any of them in Python. A number that is part of a word (``bf16``, ``top5``,
``layer.3``) is left in the text. A carriage return ends a line for the eye, but not for the count of lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from brickprof.logs.reading.model import Floats, Whole
from brickprof.logs.reading.numbers import number

Places = NDArray[np.int32]
_Bytes = NDArray[np.uint8]
_Flags = NDArray[np.bool_]

_AT_ONCE = 1 << 19
MOST_NUMBERS = 256
"""A line of more is a dump of an array."""
_COLOURS = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])")
_LONGEST_LINE = 1 << 16
_KEPT_OF_LONG = 1 << 12
_LONG = re.compile(rb"[^\r\n]{65536,}")
_COUNTERS = (b"step", b"iter", b"poch", b"tion")
_REST = b"inity"
_COUNTED = b" itera"
"""``number of nan iterations``: what follows tells that nan is a word there."""
_SPECIALS = {b"nan": 1, b"inf": 2}
"""Of each the place of its letter that is least often elsewhere."""
_DOT, _SLASH, _COMMA, _UNDERSCORE, _CASE = ord("."), ord("/"), ord(","), ord("_"), 0x20


def _table(holds: Callable[[int], bool]) -> _Flags:
    return np.array([holds(byte) for byte in range(256)])


_DIGIT = _table(lambda byte: byte in b"0123456789")
_LETTER = _table(lambda byte: byte >= 0x80 or chr(byte).isalpha() or byte in b"_@")
_SIGN = _table(lambda byte: byte in b"+-")
_COUNTERS_END = _table(lambda byte: byte in b"pPrRhHnNT")
_IN_WORDS = _LETTER | _DIGIT
_JOINS = _IN_WORDS | _table(lambda byte: byte == _DOT)


@dataclass(slots=True)
class Cut:
    """Line ``i`` begins at ``begins[i]``, stands in line ``lines[i]`` of the file and has ``holes[i]`` numbers."""

    data: bytes
    begins: Places
    lines: Whole
    holes: Places
    whole: bool
    """Whether the last line has an end."""
    counted: Whole
    """The lines that have numbers, and not too many."""
    skeleton_of: Places
    """Of each of those, which of ``skeletons``."""
    skeletons: list[bytes]
    """Lines with a NUL for each number, each text once, in the order of the file."""
    _segments: Any
    _first: Places

    def __len__(self) -> int:
        return len(self.lines)

    def text(self, line: int) -> bytes:
        return self.data[self.begins[line] : self.begins[line + 1]].rstrip(b"\r\n")

    def texts(self, lines: Whole) -> Any:
        """These lines, each with its end, as an array of bytes."""
        return _strings(self.begins, self.data).take(pa.array(lines))

    def numbers(self, line: int) -> list[bytes]:
        first = int(self._first[line])
        return [self._segments[first + 1 + 2 * hole].as_py() for hole in range(int(self.holes[line]))]

    def ends_in_a_number(self, line: int) -> bool:
        last = self._segments[int(self._first[line]) + 2 * int(self.holes[line])].as_py()
        return bool(self.holes[line]) and not last.strip()

    def values(self, rows: Whole, hole: int) -> tuple[Floats, _Flags | None]:
        """The numbers in place ``hole`` of these lines; and which of them are none, where some are not."""
        words = self._segments.take(pa.array(self._first[rows] + np.int32(1 + 2 * hole)))
        words = words.view(pa.string())  # nothing but digits, signs, dots, commas, nan and inf was let through
        if "," in words[0].as_py():
            words = pc.replace_substring(words, ",", "")
        try:
            return words.cast(pa.float64()).to_numpy(zero_copy_only=False), None
        except pa.ArrowInvalid:
            found = [number(word) for word in words.to_pylist()]
            none = np.array([value is None for value in found])
            return np.array([np.nan if value is None else value for value in found]), none


def plain(data: bytes) -> bytes:
    """Without colours and other commands to a terminal."""
    return _COLOURS.sub(b"", data) if b"\x1b" in data else data


def cut(data: bytes, first_line: int = 1) -> Cut:
    data = plain(data)
    whole = data.endswith((b"\n", b"\r"))
    if not whole:
        data += b"\n"
    if b"\0" in data:
        data = data.replace(b"\0", b" ")
    returns = b"\r" in data
    if returns:
        data = data.replace(b"\r\n", b"\n")
    raw = np.frombuffer(data, np.uint8)
    line_ends = _line_ends(raw, returns)
    if np.diff(line_ends, prepend=-1).max() > _LONGEST_LINE:
        data = _LONG.sub(_shortened, data)
        raw = np.frombuffer(data, np.uint8)
        line_ends = _line_ends(raw, returns)
    starts, ends, skeleton = _numbers(raw, line_ends, b"," in data)
    begins = np.concatenate([[0], line_ends + 1]).astype(np.int32)
    before = np.searchsorted(starts, begins).astype(np.int32)
    holes = np.diff(before)
    bounds = np.concatenate([starts, ends, begins]).astype(np.int32)
    bounds.sort(kind="stable")  # three ascending runs: a merge
    first = np.arange(len(line_ends), dtype=np.int32)
    first += 2 * before[:-1]
    counted = np.flatnonzero((holes > 0) & (holes <= MOST_NUMBERS))
    of, skeletons = _skeletons(skeleton, counted, returns)
    return Cut(
        data, begins, _line_numbers(raw, begins, first_line, returns), holes, whole, counted, of, skeletons,
        _strings(bounds, data), first,
    )  # fmt: skip


def _line_ends(raw: _Bytes, returns: bool) -> Whole:
    return np.flatnonzero((raw == 10) | (raw == 13) if returns else raw == 10)


def _shortened(found: re.Match[bytes]) -> bytes:
    """What is left of a line that is too long to be one that people read."""
    return found[0][:_KEPT_OF_LONG] + b" ..."


def _strings(bounds: Places, data: Any) -> Any:
    """What stands between these places, as strings; nothing is copied."""
    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def _skeletons(skeleton: _Bytes, counted: Whole, returns: bool) -> tuple[Places, list[bytes]]:
    """Each text of a line without its numbers once, and which of them these lines have."""
    ends = np.flatnonzero((skeleton == 10) | (skeleton == 13) if returns else skeleton == 10)
    lines = _strings(np.concatenate([[0], ends + 1]).astype(np.int32), skeleton)
    encoded = lines.take(pa.array(counted)).dictionary_encode()
    return np.asarray(encoded.indices, dtype=np.int32), encoded.dictionary.to_pylist()


def _line_numbers(raw: _Bytes, begins: Places, first_line: int, returns: bool) -> Whole:
    if not returns:
        return np.arange(first_line, first_line + len(begins) - 1, dtype=np.int64)
    return np.searchsorted(np.flatnonzero(raw == 10), begins[:-1]).astype(np.int64) + first_line


def _numbers(raw: _Bytes, line_ends: Whole, commas: bool) -> tuple[Whole, Whole, _Bytes]:
    """Where numbers begin and end, and the text with a NUL for each of them.

    It goes over the bytes many times, and so over no more at once than a cache holds.
    """
    cuts = line_ends[np.searchsorted(line_ends, np.arange(_AT_ONCE, len(raw) - 1, _AT_ONCE))] + 1
    bounds = np.unique(np.concatenate([[0], cuts, [len(raw)]]))
    parts = [(begin, *_numbers_of(raw[begin:end], commas)) for begin, end in pairwise(bounds.tolist())]
    return (
        np.concatenate([starts + begin for begin, starts, _, _ in parts]),
        np.concatenate([ends + begin for begin, _, ends, _ in parts]),
        np.concatenate([skeleton for _, _, _, skeleton in parts]),
    )


def _numbers_of(raw: _Bytes, commas: bool) -> tuple[Whole, Whole, _Bytes]:
    """The same of a stretch. Its last byte ends a line, so every number has an end."""
    mask = (raw - np.uint8(_DOT)) < 12  # a dot, a slash, the digits
    mask &= raw != _SLASH
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    if mask[0]:
        edges = np.concatenate([[0], edges])
    starts, ends = np.ascontiguousarray(edges[0::2]), np.ascontiguousarray(edges[1::2])
    starts, ends = _without_dots(raw, mask, starts, ends)
    starts, ends = _joined(raw, mask, starts, ends, commas)
    starts, ends = _with_specials(raw, mask, starts, ends)
    signed = np.flatnonzero(_SIGN.take(raw.take(starts - 1)))
    signed = signed[~_JOINS.take(raw.take(starts[signed] - 2))]
    starts[signed] -= 1
    mask[starts[signed]] = True
    words = _part_of_a_word(raw, starts, ends)
    mask[_all_between(starts[words], ends[words])] = False
    alone = np.flatnonzero(~words)
    starts, ends = starts.take(alone), ends.take(alone)
    text = raw.copy()
    text[starts] = 0
    mask[starts] = False
    return starts, ends, text[~mask]


def _all_between(starts: Whole, ends: Whole) -> Whole:
    lengths = ends - starts
    places: Whole = np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return places


def _without_dots(raw: _Bytes, mask: _Flags, starts: Whole, ends: Whole) -> tuple[Whole, Whole]:
    """A dot is part of a number where a digit follows."""
    trailing = np.flatnonzero(raw.take(ends - 1) == _DOT)
    if len(trailing):
        mask[ends[trailing] - 1] = False
        ends[trailing] -= 1
    leading = np.flatnonzero(raw.take(starts) == _DOT)
    dots = leading[~_DIGIT[raw[starts[leading] + 1]]]
    if len(dots):
        mask[_all_between(starts[dots], ends[dots])] = False
        return np.delete(starts, dots), np.delete(ends, dots)
    return starts, ends


def _joined(raw: _Bytes, mask: _Flags, starts: Whole, ends: Whole, commas: bool) -> tuple[Whole, Whole]:
    """Numbers that go on behind an exponent's e, or behind the comma of a thousand."""
    if len(starts) < 2:
        return starts, ends
    follows = raw.take(ends[:-1])
    joins = np.zeros(len(starts), dtype=bool)
    powers = np.flatnonzero((follows | _CASE) == ord("e"))
    apart = starts[powers + 1] - ends[powers]
    signed = (apart == 2) & _SIGN[raw[ends[powers] + 1]]
    joins[powers[((apart == 1) | signed) & _DIGIT[raw[starts[powers + 1]]]]] = True
    if commas:
        joins[_thousands(raw, starts, ends, np.flatnonzero(follows == _COMMA))] = True
    found = np.flatnonzero(joins)
    if not len(found):
        return starts, ends
    mask[_all_between(ends[found], starts[found + 1])] = True
    return np.delete(starts, found + 1), np.delete(ends, found)


def _thousands(raw: _Bytes, starts: Whole, ends: Whole, places: Whole) -> Whole:
    """Which go on: ``1,234`` and ``12,345,678``, but not ``0.12,345`` nor ``1234,567``."""
    begin, after = starts[places], starts[places + 1]
    length = ends[places] - begin
    ok = (after == ends[places] + 1) & (length <= 3) & (ends[places + 1] - after >= 3)
    places, begin, after, length = places[ok], begin[ok], after[ok], length[ok]
    ok = ~_DIGIT[raw[after + 3]]
    for offset in range(3):
        ok &= _DIGIT[raw[after + offset]]
        ok &= (offset >= length) | _DIGIT[raw[begin + np.minimum(offset, length - 1)]]
    going_on: Whole = places[ok]
    return going_on


def _with_specials(raw: _Bytes, mask: _Flags, starts: Whole, ends: Whole) -> tuple[Whole, Whole]:
    """nan, inf and infinity, where they are words."""
    small = raw | np.uint8(_CASE)
    for word, rare in _SPECIALS.items():
        here = np.flatnonzero(small == word[rare]) - rare
        here = here[(here >= 0) & (here + len(word) < len(raw))]
        for offset, byte in enumerate(word):
            here = here[small.take(here + offset) == byte]
        here = here[~_JOINS[raw[here - 1]]]
        after = here + len(word)
        after += len(_REST) * (_said(small, after, _REST) & (word == b"inf"))
        alone = ~_IN_WORDS[raw[np.minimum(after, len(raw) - 1)]] & ~_said(small, after, _COUNTED)
        here, after = here[alone], after[alone]
        if not len(here):
            continue
        mask[_all_between(here, after)] = True
        starts, ends = np.sort(np.concatenate([starts, here])), np.sort(np.concatenate([ends, after]))
    return starts, ends


def _said(small: _Bytes, places: Whole, word: bytes) -> _Flags:
    """Whether this stands at these places."""
    said = places + len(word) < len(small)
    for offset, byte in enumerate(word):
        said[said] = small[places[said] + offset] == byte
    return said


def _part_of_a_word(raw: _Bytes, starts: Whole, ends: Whole) -> _Flags:
    """Which are: ``bf16``, ``layer.3`` and ``1_000``; but in ``step_10`` and behind the T of a date it is one."""
    joined = _LETTER.take(raw.take(starts - 1))
    suspects = np.flatnonzero(joined)
    last = starts[suspects] - 1
    last -= raw[last] == _UNDERSCORE
    maybe = _COUNTERS_END[raw[last]]
    suspects, last = suspects[maybe], last[maybe]
    counts = (raw[last] == ord("T")) & _DIGIT[raw[last - 1]]  # 2024-01-01T00:00:00
    for word in _COUNTERS:
        same = np.flatnonzero((last >= len(word) - 1) & (raw[starts[suspects]] != _DOT))
        for offset, byte in enumerate(reversed(word)):
            same = same[(raw[last[same] - offset] | _CASE) == byte]
        counts[same] = True
    joined[suspects[counts]] = False
    joined |= raw.take(ends) == _UNDERSCORE
    return joined
