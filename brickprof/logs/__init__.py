"""Logs of other tools: a foreign log becomes a ``Log``, and then a Run.

Enters: a path, or "-". Leaves: the ``Log`` that the reader of its format made of it. Readers are the modules of this
package, one format a file; the one that is surest of the file's beginning reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from brickprof import plugins
from brickprof.errors import UnreadableInput
from brickprof.logs.reading.gather import Attempt, Gathering, Log, Series
from brickprof.logs.reading.model import Fact, Reader
from brickprof.logs.reading.source import Source
from brickprof.text import clean

__all__ = ["Attempt", "Fact", "Log", "Series", "read", "readers", "sniff"]

_LIBRARY = ("reading",)
_LEAST = 0.05


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


def read(path: str | Path | Source, reader: Reader | None = None) -> Log:
    """One log. What is damaged in it is said in ``damage``; what came before is there."""
    source = path if isinstance(path, Source) else Source(path)
    chosen = reader or sniff(source)
    gathering = Gathering(source.path, chosen.name, dict(getattr(chosen, "roles", {})))
    try:
        gathering.take(chosen.read(source))
    except UnreadableInput:
        raise
    except (ValueError, OverflowError, UnicodeError, RecursionError, KeyError, IndexError, TypeError, OSError) as error:
        gathering.log_.damage.append(f"reading stopped: {clean(error, limit=200)}")
    return gathering.log()


def read_all(paths: Iterable[str | Path]) -> list[Log]:
    return [read(path) for path in paths]
