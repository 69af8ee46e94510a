"""A chunk of text cut into lines, and each line into its numbers and what stands between them.

Enters: bytes. Leaves: ``Cut``: of every line its text without its numbers (its skeleton), each such text once, and
where the numbers are, without looking at any of them in Python. A number that is part of a word (``bf16``, ``top5``,
``layer.3``) is left in the text. A carriage return ends a line for the eye, but not for the count of lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from brickprof.logs.reading.alike import ROOM, Alike, alike
from brickprof.logs.reading.digits import all_between, numbers, runs
from brickprof.logs.reading.model import Floats, Places, Whole
from brickprof.logs.reading.numbers import number
from brickprof.run.columns import places, values

_Bytes = NDArray[np.uint8]
_Flags = NDArray[np.bool_]

MOST_NUMBERS = 256
"""A line of more is a dump of an array."""
_COLOURS = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])")
_LONGEST_LINE = 1 << 16
_KEPT_OF_LONG = 1 << 12
_LONG = re.compile(rb"[^\r\n]{65536,}")
_MOST_ALIKE = 8
_RARE = 50
"""One line of so many is worth a look of its own."""


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
    starts: Places
    ends: Places
    """Where each number begins and ends."""
    first: Places
    """Of each line, which number is its first."""

    def __len__(self) -> int:
        return len(self.lines)

    def text(self, line: int) -> bytes:
        return self.data[self.begins[line] : self.begins[line + 1]].rstrip(b"\r\n")

    def texts(self, lines: Whole) -> Any:
        """These lines, each with its end, as an array of bytes."""
        return _strings(self.begins, self.data).take(places(lines))

    def numbers(self, line: int) -> list[bytes]:
        own = range(int(self.first[line]), int(self.first[line] + self.holes[line]))
        return [self.data[self.starts[each] : self.ends[each]] for each in own]

    def ends_in_a_number(self, line: int) -> bool:
        if not self.holes[line]:
            return False
        last = int(self.ends[self.first[line] + self.holes[line] - 1])
        return not self.data[last : self.begins[line + 1]].strip()

    def values(self, rows: Whole, hole: int) -> tuple[Floats, _Flags | None]:
        """The numbers in place ``hole`` of these lines; and which of them are none, where some are not."""
        which = self.first.take(rows)
        which += np.int32(hole)
        words = _spans(self.starts.take(which), self.ends.take(which), self.data)
        if b"," in self.data[self.starts[which[0]] : self.ends[which[0]]]:
            words = pc.replace_substring(words, ",", "")
        try:
            return np.frombuffer(words.cast(pa.float64()).buffers()[1], np.float64, 2 * len(rows))[::2], None
        except pa.ArrowInvalid:
            found = [number(word) for word in words.to_pylist()[::2]]
            none = np.array([value is None for value in found])
            return np.array([np.nan if value is None else value for value in found]), none


def plain(data: bytes) -> bytes:
    """Without colours and other commands to a terminal."""
    return _COLOURS.sub(b"", data) if b"\x1b" in data else data


def cut(data: bytes, first_line: int = 1) -> Cut:
    return Cutter().cut(data, first_line)


class Cutter:
    """Cuts the chunks of a file; lines that are like many before them are not taken apart again (see ``alike``)."""

    def __init__(self) -> None:
        self._known: list[Alike] = []

    def cut(self, data: bytes, first_line: int = 1) -> Cut:
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
        begins = np.concatenate([[0], line_ends + 1]).astype(np.int32)
        parts = self._parts(data, begins, returns)
        found = parts[0] if len(parts) == 1 else _together(len(line_ends), parts)
        counted = np.flatnonzero((found.holes > 0) & (found.holes <= MOST_NUMBERS))
        return Cut(
            data, begins, _line_numbers(raw, begins, first_line, returns), found.holes, whole, counted,
            found.skeleton_of.take(counted), found.skeletons, found.starts, found.ends,
            np.cumsum(found.holes, dtype=np.int32) - found.holes,
        )  # fmt: skip

    def _parts(self, data: bytes, begins: Places, returns: bool) -> list[_Part]:
        """All lines, in parts that need not stand together."""
        left = np.arange(len(begins) - 1)
        parts, left = self._known_ones(data, begins, left) if self._known else ([], left)
        if len(left):
            apart = _taken_apart(data, begins, left, returns)
            self._learn(data, begins, apart)
            parts.append(apart)
        return parts

    def _known_ones(self, data: bytes, begins: Places, left: Whole) -> tuple[list[_Part], Whole]:
        """The lines that are like one before, and the others."""
        padded = data + bytes(ROOM)
        edges = runs(np.frombuffer(data, np.uint8), begins)
        first = self._known[0]
        if len(edges) == 2 * first.runs * len(left):
            by_run = np.ascontiguousarray(edges.reshape(len(left), -1).T)
            good, starts, ends = first.match(padded, begins[:-1], begins[1:], by_run)
            if good.all():
                return [_alike_ones(left, first.skeleton, starts, ends)], left[:0]
        before = np.searchsorted(edges, begins)
        counts = np.diff(before)
        parts = []
        taken: dict[int, int] = {}
        for known in self._known:
            fitting = left[counts[left] == 2 * known.runs]
            if not len(fitting):
                continue
            by_run = edges[np.arange(2 * known.runs)[:, None] + before[fitting]]
            good, starts, ends = known.match(padded, begins[fitting], begins[fitting + 1], by_run)
            if not good.any():
                continue
            here = fitting[good]
            taken[id(known)] = len(here)
            own = [each[good] for each in starts], [each[good] for each in ends]
            parts.append(_alike_ones(here, known.skeleton, *own))
            rest = np.ones(len(begins), dtype=bool)
            rest[here] = False
            left = left[rest[left]]
        self._known = [known for known in self._known if taken.get(id(known), 0) * _RARE >= len(begins) - 1]
        self._known.sort(key=lambda known: -taken[id(known)])
        return parts, left

    def _learn(self, data: bytes, begins: Places, part: _Part) -> None:
        """How the lines are that came most often."""
        counts = np.bincount(part.skeleton_of[part.skeleton_of >= 0], minlength=len(part.skeletons))
        often = np.argsort(-counts, kind="stable")[: _MOST_ALIKE - len(self._known)].tolist()
        for place in (place for place in often if counts[place] * _RARE >= len(begins) - 1 and counts[place] > 1):
            row = int(np.argmax(part.skeleton_of == place))
            line, own = int(part.lines[row]), int(part.holes[:row].sum())
            begin, numbers = int(begins[line]), slice(own, own + int(part.holes[row]))
            spans = zip((part.starts[numbers] - begin).tolist(), (part.ends[numbers] - begin).tolist(), strict=True)
            known = alike(data[begin : begins[line + 1]], part.skeletons[place], list(spans))
            if known is not None:
                self._known.append(known)


@dataclass(slots=True)
class _Part:
    """Some lines: how many numbers each has, where they are, and which skeleton it has; -1 where that is not asked."""

    lines: Whole
    holes: Places
    starts: Places
    ends: Places
    skeleton_of: Places
    skeletons: list[bytes]


def _alike_ones(lines: Whole, skeleton: bytes, starts: list[Places], ends: list[Places]) -> _Part:
    return _Part(
        lines, np.full(len(lines), len(starts), dtype=np.int32), np.stack(starts, axis=1).ravel(),
        np.stack(ends, axis=1).ravel(), np.zeros(len(lines), dtype=np.int32), [skeleton],
    )  # fmt: skip


def _together(count: int, parts: list[_Part]) -> _Part:
    """The parts as one, line by line."""
    holes, skeleton_of = np.zeros(count, dtype=np.int32), np.full(count, -1, dtype=np.int32)
    skeletons: list[bytes] = []
    for part in parts:
        holes[part.lines] = part.holes
        skeleton_of[part.lines] = np.where(part.skeleton_of >= 0, part.skeleton_of + len(skeletons), -1)
        skeletons += part.skeletons
    behind = np.cumsum(holes)
    starts, ends = np.empty(behind[-1], dtype=np.int32), np.empty(behind[-1], dtype=np.int32)
    for part in parts:
        own = all_between(behind[part.lines] - part.holes, behind[part.lines])
        starts[own], ends[own] = part.starts, part.ends
    return _Part(np.arange(count), holes, starts, ends, skeleton_of, skeletons)


def _taken_apart(data: bytes, begins: Places, lines: Whole, returns: bool) -> _Part:
    """These lines, each looked at byte by byte."""
    moved = None
    if len(lines) < len(begins) - 1:
        ends_here = np.flatnonzero(np.diff(lines, append=-1) != 1)
        first = np.concatenate([[0], ends_here[:-1] + 1])
        stretches = zip(begins[lines[first]].tolist(), begins[lines[ends_here] + 1].tolist(), strict=True)
        data = b"".join([data[begin:end] for begin, end in stretches])
        theirs = begins[lines]
        lengths = begins[lines + 1] - theirs
        begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        moved = theirs - begins[:-1]
    raw = np.frombuffer(data, np.uint8)
    starts, ends, text = numbers(raw, begins, b"," in data)
    holes = np.diff(np.searchsorted(starts, begins)).astype(np.int32)
    if moved is not None:
        by = np.repeat(moved, holes)
        starts, ends = starts + by, ends + by
    counted = np.flatnonzero((holes > 0) & (holes <= MOST_NUMBERS))
    of, skeletons = _skeletons(text, counted, returns)
    skeleton_of = np.full(len(lines), -1, dtype=np.int32)
    skeleton_of[counted] = of
    return _Part(lines, holes, starts, ends, skeleton_of, skeletons)


def _line_ends(raw: _Bytes, returns: bool) -> Whole:
    return np.flatnonzero((raw == 10) | (raw == 13) if returns else raw == 10)


def _shortened(found: re.Match[bytes]) -> bytes:
    """What is left of a line that is too long to be one that people read."""
    return found[0][:_KEPT_OF_LONG] + b" ..."


def _strings(bounds: Places, data: Any) -> Any:
    """What stands between these places, as strings; nothing is copied."""
    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def _spans(starts: Places, ends: Places, data: bytes) -> Any:
    """What stands from these places to those, as strings, each followed by a null for what separates it from the next.

    Nothing is copied. They are strings: nothing but digits, signs, dots, commas, nan and inf was let through.
    """
    bounds = np.empty(2 * len(starts) + 1, dtype=np.int32)
    bounds[:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = bounds[-2]
    every_other = np.full(-(-len(bounds) // 8), 0b01010101, dtype=np.uint8)
    return pa.StringArray.from_buffers(
        2 * len(starts), pa.py_buffer(bounds), pa.py_buffer(data), pa.py_buffer(every_other), len(starts)
    )


def _skeletons(skeleton: _Bytes, counted: Whole, returns: bool) -> tuple[Places, list[bytes]]:
    """Each text of a line without its numbers once, and which of them these lines have."""
    ends = np.flatnonzero((skeleton == 10) | (skeleton == 13) if returns else skeleton == 10)
    lines = _strings(np.concatenate([[0], ends + 1]).astype(np.int32), skeleton)
    encoded = lines.take(places(counted)).dictionary_encode()
    return values(encoded.indices), encoded.dictionary.to_pylist()


def _line_numbers(raw: _Bytes, begins: Places, first_line: int, returns: bool) -> Whole:
    if not returns:
        return np.arange(first_line, first_line + len(begins) - 1, dtype=np.int64)
    return np.searchsorted(np.flatnonzero(raw == 10), begins[:-1]).astype(np.int64) + first_line
