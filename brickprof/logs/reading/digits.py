"""Where the numbers of a text are, and the text without them.

Enters: bytes that end with a line. Leaves: where numbers begin and end, and the text with a NUL for each of them; none
of them is looked at in Python. A number that is part of a word (``bf16``, ``top5``, ``layer.3``) is left in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from brickprof.logs.reading.model import Places, Whole

_Bytes = NDArray[np.uint8]
_Flags = NDArray[np.bool_]

_AT_ONCE = 1 << 19
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


def numbers(raw: _Bytes, begins: Places, commas: bool) -> tuple[Places, Places, _Bytes]:
    """Where numbers begin and end, and the text with a NUL for each of them; ``begins`` of the lines, and the end.

    It goes over the bytes many times, and so over no more at once than a cache holds.
    """
    parts = [(begin, *_numbers_of(raw[begin:end], commas)) for begin, end in _stretches(begins)]
    return (
        np.concatenate([starts.astype(np.int32) + np.int32(begin) for begin, starts, _, _ in parts]),
        np.concatenate([ends.astype(np.int32) + np.int32(begin) for begin, _, ends, _ in parts]),
        np.concatenate([skeleton for _, _, _, skeleton in parts]),
    )


def runs(raw: _Bytes, begins: Places) -> Places:
    """Where runs of digits and dots begin and end, in turn."""
    parts = []
    for begin, end in _stretches(begins):
        edges = _edges(_mask(raw[begin:end])).astype(np.int32)
        edges += np.int32(begin)
        parts.append(edges)
    return np.concatenate(parts)


def _stretches(begins: Places) -> Iterator[tuple[int, int]]:
    """Whole lines, about as much at once as a cache holds."""
    cuts = begins[np.searchsorted(begins, np.arange(_AT_ONCE, int(begins[-1]), _AT_ONCE))]
    return pairwise(np.unique(np.concatenate([[0], cuts, begins[-1:]])).tolist())


def _mask(raw: _Bytes) -> _Flags:
    mask = (raw - np.uint8(_DOT)) < 12  # a dot, a slash, the digits
    mask &= raw != _SLASH
    return mask


def _edges(mask: _Flags) -> Whole:
    edges: Whole = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    return np.concatenate([[0], edges]) if mask[0] else edges


def _numbers_of(raw: _Bytes, commas: bool) -> tuple[Whole, Whole, _Bytes]:
    """The same of a stretch. Its last byte ends a line, so every number has an end."""
    mask = _mask(raw)
    edges = _edges(mask)
    starts, ends = np.ascontiguousarray(edges[0::2]), np.ascontiguousarray(edges[1::2])
    starts, ends = _without_dots(raw, mask, starts, ends)
    starts, ends = _joined(raw, mask, starts, ends, commas)
    starts, ends = _with_specials(raw, mask, starts, ends)
    signed = np.flatnonzero(_SIGN.take(raw.take(starts - 1)))
    signed = signed[~_JOINS.take(raw.take(starts[signed] - 2))]
    starts[signed] -= 1
    mask[starts[signed]] = True
    words = _part_of_a_word(raw, starts, ends)
    mask[all_between(starts[words], ends[words])] = False
    alone = np.flatnonzero(~words)
    starts, ends = starts.take(alone), ends.take(alone)
    text = raw.copy()
    text[starts] = 0
    mask[starts] = False
    return starts, ends, text[~mask]


def all_between(starts: Whole | Places, ends: Whole | Places) -> Whole:
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
        mask[all_between(starts[dots], ends[dots])] = False
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
    mask[all_between(ends[found], starts[found + 1])] = True
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
        mask[all_between(here, after)] = True
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
