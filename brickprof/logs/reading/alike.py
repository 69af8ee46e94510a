"""Lines that are like a line before them, many at a time.

Enters: a chunk, its lines, and where its runs of digits and dots begin and end. Leaves: which lines are like one that
was taken apart before, and where their numbers are. A trainer writes the same text around its numbers again and again:

    step 12/900 | loss 2.25 | lr 3.0e-04        a line that was taken apart
    step |/| | loss | | lr |                    its literals, and the numbers between them

A line is like it if it has as many runs, and if every literal stands between them as it should, byte by byte. What a
number is depends on what it stands between (see ``tokens``), and so its numbers are where the other's are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from brickprof.logs.reading.model import Places
from brickprof.logs.reading.words import Words, stands, words_of

ROOM = 1 << 10
"""Bytes that a chunk needs behind its end."""
_MOST_NUMBERS = 64
_LONGEST = ROOM - 8
_JOINS = re.compile(rb"[eE][+-]?|,")
"""What may make one number of two, depending on the two."""
_RUN = re.compile(rb"[0-9.]+")
_DOT, _ZERO = ord("."), ord("0")


@dataclass(frozen=True, slots=True)
class _Text:
    """What stands between two runs, before the first or behind the last; or a run that is no number."""

    length: int
    words: Words


@dataclass(frozen=True, slots=True)
class Alike:
    """How lines are that have one skeleton."""

    skeleton: bytes
    runs: int
    gaps: tuple[_Text, ...]
    fixed: tuple[tuple[int, _Text], ...]
    """Runs that are part of the text."""
    numbers: tuple[tuple[int, int, int, int], ...]
    """Of each number the run that it begins in and the one it ends in; bytes before the one and behind the other."""

    def match(
        self, padded: bytes, begins: Places, ends: Places, edges: Places
    ) -> tuple[NDArray[np.bool_], list[Places], list[Places]]:
        """Which lines are so, and where their numbers begin and end: an array for each number.

        ``edges`` holds, line by line in its second dimension, where the runs begin and end in turn.
        """
        opened, closed = edges[0::2], edges[1::2]
        lefts, rights = [begins, *closed], [*opened, ends]
        good = np.ones(len(begins), dtype=bool)
        for gap, left, right in zip(self.gaps, lefts, rights, strict=True):
            good &= right - left == gap.length
        for run, text in self.fixed:
            good &= closed[run] - opened[run] == text.length
        if not good.any():
            return good, [], []
        for gap, left in zip(self.gaps, lefts, strict=True):
            good &= stands(gap.words, padded, left)
        for run, text in self.fixed:
            good &= stands(text.words, padded, opened[run])
        raw = np.frombuffer(padded, np.uint8)
        starts, stops = [], []
        for first, last, before, behind in self.numbers:
            for run in range(first, last + 1):
                good &= raw.take(opened[run]) - _ZERO < 10
                good &= (raw.take(closed[run] - 1) == _DOT) == (run == last and bool(behind))
            starts.append(opened[first] - np.int32(before))
            stops.append(closed[last] - np.int32(behind))
        return good, starts, stops


def alike(line: bytes, skeleton: bytes, numbers: list[tuple[int, int]]) -> Alike | None:
    """How lines like this one are, which has its end and these numbers; None where it takes more to tell."""
    runs = [run.span() for run in _RUN.finditer(line)]
    opens = {begin: place for place, (begin, _) in enumerate(runs)}
    closes = {end: place for place, (_, end) in enumerate(runs)}
    if not numbers or len(numbers) > _MOST_NUMBERS:
        return None
    found: list[tuple[int, int, int, int]] = []
    inside: set[int] = set()
    joints: set[int] = set()
    for begin, end in numbers:
        before, behind = int(begin not in opens), int(end not in closes)
        first, last = opens.get(begin + before), closes.get(end + behind)
        if first is None or last is None or line[begin + before] == _DOT:
            return None
        found.append((first, last, before, behind))
        inside.update(range(first, last + 1))
        joints.update(range(first + 1, last + 1))
    texts = [line[left:right] for (_, left), (right, _) in pairwise([(0, 0), *runs, (len(line), 0)])]
    if max(map(len, texts)) > _LONGEST or any(
        _JOINS.fullmatch(text) for place, text in enumerate(texts) if place not in joints
    ):
        return None  # fmt: skip
    if any(texts[place] == b"," for place in joints):
        return None
    fixed = tuple((place, _text(line[slice(*run)])) for place, run in enumerate(runs) if place not in inside)
    return Alike(skeleton, len(runs), tuple(map(_text, texts)), fixed, tuple(found))


def _text(text: bytes) -> _Text:
    return _Text(len(text), words_of(text))
