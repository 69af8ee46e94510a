"""A chunk of text cut into lines, and each line into its numbers and what stands between them.

Enters: bytes. Leaves: ``Cut``: for every line the words around its numbers (gaps), by number, and where the numbers
are, without looking at any of them in Python. A number that is part of a word (``bf16``, ``top5``, ``layer.3``) is left
in the gap. A carriage return ends a line for the eye, but not for the count of lines.
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
_COUNTERS = (b"step", b"iter", b"poch", b"tion")
_COUNTED = b" itera"
_SPECIALS = {b"nan": 1, b"inf": 2, b"infinity": 7}
"""Of each the place of its letter that is least often elsewhere."""
_DOT, _COMMA, _PLUS, _MINUS, _UNDERSCORE, _CASE = ord("."), ord(","), ord("+"), ord("-"), ord("_"), 0x20


def _table(holds: Callable[[int], bool]) -> _Flags:
    return np.array([holds(byte) for byte in range(256)])


_DIGIT = _table(lambda byte: byte in b"0123456789")
_LETTER = _table(lambda byte: byte >= 0x80 or chr(byte).isalpha() or byte in b"_@")
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
    gap_begins: Places
    """Of each line, which of ``gap_of`` is its first; it has one more than numbers."""
    gap_of: Places
    gap_place: Places
    gaps: list[bytes]
    """What stands between numbers, each text once."""
    _segments: Any
    _first: Places

    def __len__(self) -> int:
        return len(self.lines)

    def text(self, line: int) -> bytes:
        return self.data[self.begins[line] : self.begins[line + 1]].rstrip(b"\r\n")

    def gap_texts(self, line: int) -> list[bytes]:
        begin = self.gap_begins[line]
        return [self.gaps[which] for which in self.gap_of[begin : begin + self.holes[line] + 1]]

    def numbers(self, line: int) -> list[bytes]:
        first = int(self._first[line])
        return [self._segments[first + 1 + 2 * hole].as_py() for hole in range(int(self.holes[line]))]

    def values(self, rows: Whole | Places, hole: int) -> tuple[Floats, _Flags | None]:
        """The numbers in place ``hole`` of these lines; and which of them are none, where some are not."""
        words = self._segments.take(pa.array(self._first[rows] + np.int32(1 + 2 * hole)))
        words = words.view(pa.string())  # nothing but digits, signs, dots, nan and inf was let through
        try:
            return words.cast(pa.float64()).to_numpy(zero_copy_only=False), None
        except pa.ArrowInvalid:
            pass
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
    returns = b"\r" in data
    if returns:
        data = data.replace(b"\r\n", b"\n")
    raw = np.frombuffer(data, np.uint8)
    line_ends = np.flatnonzero((raw == 10) | (raw == 13) if returns else raw == 10)
    starts, ends = _numbers(raw, line_ends)
    begins = np.concatenate([[0], line_ends + 1]).astype(np.int32)
    before = np.searchsorted(starts, begins).astype(np.int32)
    holes = np.diff(before)
    first = 2 * before[:-1] + np.arange(len(line_ends), dtype=np.int32)
    bounds = np.concatenate([starts, ends, begins]).astype(np.int32)
    bounds.sort(kind="stable")  # three ascending runs: a merge
    segments = pa.BinaryArray.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    each = np.where((holes > 0) & (holes <= MOST_NUMBERS), holes + 1, 0).astype(np.int32)
    gap_ends = np.cumsum(each, dtype=np.int32)
    gap_begins = gap_ends - each
    place = np.arange(gap_ends[-1], dtype=np.int32) - np.repeat(gap_begins, each)
    encoded = segments.take(pa.array(np.repeat(first, each) + 2 * place)).dictionary_encode()
    return Cut(
        data, begins, _line_numbers(raw, begins, first_line, returns), holes, whole, gap_begins,
        np.asarray(encoded.indices, dtype=np.int32), place, encoded.dictionary.to_pylist(), segments, first,
    )  # fmt: skip


def _line_numbers(raw: _Bytes, begins: Places, first_line: int, returns: bool) -> Whole:
    if not returns:
        return np.arange(first_line, first_line + len(begins) - 1, dtype=np.int64)
    return np.searchsorted(np.flatnonzero(raw == 10), begins[:-1]).astype(np.int64) + first_line


def _numbers(raw: _Bytes, line_ends: Whole) -> tuple[Whole, Whole]:
    """Where numbers begin and end. It goes over the bytes many times, and so over no more at once than a cache holds."""
    cuts = line_ends[np.searchsorted(line_ends, np.arange(_AT_ONCE, len(raw) - 1, _AT_ONCE))] + 1
    bounds = np.unique(np.concatenate([[0], cuts, [len(raw)]]))
    parts = [(begin, *_numbers_of(raw[begin:end])) for begin, end in pairwise(bounds.tolist())]
    return (
        np.concatenate([starts + begin for begin, starts, _ in parts]),
        np.concatenate([ends + begin for begin, _, ends in parts]),
    )


def _numbers_of(raw: _Bytes) -> tuple[Whole, Whole]:
    """The same of a stretch. Its last byte ends a line, so every number has an end."""
    digit = (raw - np.uint8(48)) < 10
    mask = digit.copy()
    mask[:-1] |= (raw[:-1] == _DOT) & digit[1:]
    small = raw | np.uint8(_CASE)
    _add_exponents(raw, small, mask)
    _add_thousands(raw, mask, digit)
    _add_specials(raw, small, mask)
    _add_signs(raw, mask)
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    if mask[0]:
        edges = np.concatenate([[0], edges])
    starts, ends = np.ascontiguousarray(edges[0::2]), np.ascontiguousarray(edges[1::2])
    joined = _part_of_a_word(raw, small, starts, ends)
    alone = np.flatnonzero(~joined)
    return starts.take(alone), ends.take(alone)


def _add_exponents(raw: _Bytes, small: _Bytes, mask: _Flags) -> None:
    places = np.flatnonzero((small[1:-2] == ord("e")) & mask[:-3]) + 1
    if not len(places):
        return
    follows = raw[places + 1]
    signed = places[((follows == _PLUS) | (follows == _MINUS)) & _DIGIT[raw[places + 2]]]
    mask[places[_DIGIT[follows]]] = True
    mask[signed] = True
    mask[signed + 1] = True


def _add_thousands(raw: _Bytes, mask: _Flags, digit: _Flags) -> None:
    """``1,234`` and ``12,345,678``, but not ``0.12,345`` nor ``1234,567``."""
    places = np.flatnonzero((raw[1:-4] == _COMMA) & digit[:-5] & digit[2:-3]) + 1
    if not len(places):
        return
    places = places[digit[places + 2] & digit[places + 3] & ~digit[places + 4]]
    group = np.ones(len(places), dtype=np.int64)
    for length in (2, 3, 4):
        group += (group == length - 1) & (places >= length) & digit[places - length]
    ahead = np.where(places > group, raw[places - group - 1], 0)
    mask[places[(group <= 3) & (ahead != _DOT)]] = True


def _add_specials(raw: _Bytes, small: _Bytes, mask: _Flags) -> None:
    """nan, inf and infinity, where they are words."""
    for word, rare in _SPECIALS.items():
        here = np.flatnonzero(small == word[rare]) - rare
        here = here[(here >= 0) & (here + len(word) < len(raw))]
        for offset, byte in enumerate(word):
            here = here[small.take(here + offset) == byte]
        if not len(here):
            continue
        here = here[~_JOINS[raw[here - 1]] | (here == 0)]
        here = here[~_IN_WORDS[raw[here + len(word)]]]
        here = here[~_counted(small, here + len(word))]
        for offset in range(len(word)):
            mask[here + offset] = True


def _counted(small: _Bytes, places: Whole) -> _Flags:
    """``number of nan iterations``: what follows tells that nan is a word here."""
    said = places + len(_COUNTED) < len(small)
    for offset, byte in enumerate(_COUNTED):
        said[said] = small[places[said] + offset] == byte
    return said


def _add_signs(raw: _Bytes, mask: _Flags) -> None:
    places = np.flatnonzero(((raw - np.uint8(_PLUS)) & np.uint8(0xFD)) == 0)  # plus and minus are two apart
    places = places[mask.take(places + 1) & ~mask.take(places)]
    mask[places[(places == 0) | ~_JOINS[raw[places - 1]]]] = True


def _part_of_a_word(raw: _Bytes, small: _Bytes, starts: Whole, ends: Whole) -> _Flags:
    """Which are: ``bf16``, ``layer.3`` and ``1_000``; but in ``step_10`` and behind the T of a date it is one."""
    joined = _LETTER.take(raw.take(starts - 1))
    if len(starts) and starts[0] == 0:
        joined[0] = False
    suspects = np.flatnonzero(joined)
    last = starts[suspects] - 1
    last -= raw[last] == _UNDERSCORE
    maybe = _COUNTERS_END[raw[last]]
    suspects, last = suspects[maybe], last[maybe]
    counts = (raw[last] == ord("T")) & _DIGIT[raw[last - 1]]  # 2024-01-01T00:00:00
    for word in _COUNTERS:
        same = np.flatnonzero((small[last] == word[-1]) & (last >= len(word) - 1) & (raw[starts[suspects]] != _DOT))
        for offset, byte in enumerate(reversed(word)):
            same = same[small[last[same] - offset] == byte]
        counts[same] = True
    joined[suspects[counts]] = False
    joined |= raw.take(ends) == _UNDERSCORE
    return joined
