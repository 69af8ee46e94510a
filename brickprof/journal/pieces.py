"""What is found in a piece of a long file of frames (see ``sweep``): plain data, made in one process or another."""

from __future__ import annotations

from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where a column lies in a frame: its values, and the bits that say which there are."""

    values: int
    bits: int
    missing: int


class Layout(NamedTuple):
    """How a frame is laid out."""

    rows: int
    places: dict[str, Place]


class Stretch(NamedTuple):
    """Frames of one layout and length, one behind the other."""

    start: int
    length: int
    number: int
    layout: Layout

    @property
    def rows(self) -> int:
        return self.layout.rows * self.number

    @property
    def end(self) -> int:
        return self.start + self.length * self.number


class Column(NamedTuple):
    """Values, and which of them there are: None for all. No values at all where there is none."""

    rows: int
    values: Any
    present: Any = None


class Odd(Exception):
    """Something about the file is not as it should be: the slow way knows what."""


class Piece:
    """What was found of the frames that begin in one part of the file."""

    def __init__(self, first: int, columns: dict[str, list[Column]]) -> None:
        self.first = self.last = first
        self.stretches: list[Stretch] = []
        self.columns = columns
        self.checksum = 0
