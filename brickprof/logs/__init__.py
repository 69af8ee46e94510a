"""Logs of other tools: a foreign log becomes a ``Log``, and then a Run.

Enters: a path, or "-". Leaves: the ``Log`` that the reader of its format made of it. Readers are the modules of this
package, one format a file; the one that is surest of the file's beginning reads it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from brickprof import plugins
from brickprof.errors import UnreadableInput, UsageError
from brickprof.logs.reading.gather import Gathering, Log, Series
from brickprof.logs.reading.model import Fact, Reader
from brickprof.logs.reading.order import Attempt
from brickprof.logs.reading.source import Part, Source
from brickprof.text import clean

__all__ = ["Attempt", "Fact", "Log", "Series", "choose", "read", "readers", "sniff"]

Mapped = Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]]
"""Does what ``map`` does, in order, perhaps elsewhere."""

_LIBRARY = ("reading",)
_LEAST = 0.05
_STUMBLES = (
    ValueError, OverflowError, UnicodeError, RecursionError, KeyError, IndexError, TypeError, OSError, AttributeError,
    ArithmeticError, AssertionError, EOFError, zlib.error, struct.error,
)  # fmt: skip
"""What a reader may meet in a file that is not as it should be."""


@lru_cache(maxsize=1)
def readers() -> dict[str, Reader]:
    """Every reader by its name, ours and third parties'."""
    found = plugins.discover("brickprof.logs", leave_out=_LIBRARY)
    return {reader.name: reader for reader in found.exports("READER").values()}


def sniff(source: Source) -> Reader:
    """The reader that is surest of this file."""
    head = source.head()
    shown = clean(source.path)
    if not head.start.strip():
        raise UnreadableInput(f"{shown} is empty.", "Nothing was logged, or the file was cut off.")
    sure = [(_surely(reader, head), name) for name, reader in readers().items()]
    best, name = max(sure, default=(0.0, ""))
    if best < _LEAST:
        known = ", ".join(sorted(readers()))
        raise UnreadableInput(
            f"{shown} is not a log I can read{_looks(head.start)}.", f"I read: {known}; or give --pattern."
        )
    return readers()[name]


def _surely(reader: Any, head: Any) -> float:
    try:
        return float(reader.sniff(head))
    except Exception:  # whatever is in the file: a reader that stumbles over it is not its reader
        return 0.0


def _looks(start: bytes) -> str:
    """What a file that is no log looks like."""
    for magic, word in _FOREIGN.items():
        if start.startswith(magic):
            return f" (binary, {word})"
    return " (binary)" if b"\0" in start[:4096] else ""


_FOREIGN = {
    b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"PK\x03\x04": "ZIP", b"%PDF": "PDF", b"\x7fELF": "ELF",
    b"\x80\x02": "pickle", b"\x80\x04": "pickle", b"\x93NUMPY": "NumPy", b"SQLite format 3": "SQLite",
    b"\x89HDF": "HDF5",
}  # fmt: skip


def choose(name: str = "", pattern: str = "") -> Reader | None:
    """The reader that was asked for by its name or by a pattern; None where it is to be found out."""
    if pattern:
        from brickprof.logs.reading.templates import from_pattern

        made: Reader = from_pattern(pattern)
        return made
    if not name:
        return None
    if name not in readers():
        near = get_close_matches(name, readers(), n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]}?" if near else f"Formats: {', '.join(sorted(readers()))}."
        raise UsageError(f"there is no format {clean(name)}.", hint)
    return readers()[name]


def read(path: str | Path | Source, reader: Reader | None = None, *, mapped: Mapped = map) -> Log:
    """One log. What is damaged in it is said in ``damage``; what came before is there.

    A large file of lines is read in pieces, by whoever ``mapped`` gives them to; it comes to the same.
    """
    source = path if isinstance(path, Source) else Source(path)
    chosen = reader or sniff(source)
    pieces = source.pieces() if getattr(chosen, "by_lines", False) else []
    if len(pieces) < 2:
        return _checked(_gathered(source, chosen).log(), chosen)
    ours = readers().get(chosen.name) is chosen
    work = [Piece(source.path, part, chosen.name, None if ours else chosen) for part in pieces]
    gathered = iter(mapped(read_piece, work))
    first: Gathering = next(gathered)
    for more in gathered:
        first.absorb(more)
    return _checked(first.log(), chosen)


def _checked(log: Log, reader: Reader) -> Log:
    """A reader may have something to say about what it came to: a pattern, that it fits nowhere."""
    check = getattr(reader, "checked", None)
    if check is not None:
        check(log)
    return log


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file and who reads it, for another process."""

    path: str
    part: Part
    name: str
    reader: Reader | None = None


def read_piece(piece: Piece) -> Gathering:
    return _gathered(Source(piece.path, piece.part), piece.reader or readers()[piece.name]).thinned()


def _gathered(source: Source, reader: Reader) -> Gathering:
    gathering = Gathering(source.path, reader.name, dict(getattr(reader, "roles", {})))
    try:
        gathering.take(reader.read(source))
    except UnreadableInput:
        raise
    except _STUMBLES as error:
        gathering.damage.append(f"reading stopped: {clean(error, limit=200) or type(error).__name__}")
    gathering.damage += source.damage
    gathering.lines = source.line_ends
    if (times := source.clock.times()) is not None:
        gathering.written(*times)
    return gathering


def read_all(paths: Iterable[str | Path]) -> list[Log]:
    return [read(path) for path in paths]
