"""A whole file of events, read at once: what ``lines.read_events`` says of it, in a third of the time.

Enters: an ``events.jsonl``. Leaves: its events, and what was lost. Each line is checked against its own checksum; then
all of them are one JSON document, whose reader knows the names of fields after the first line. A file of which that
does not hold (a torn line, a damaged one, something that nobody here wrote) is read line by line.
"""

from __future__ import annotations

import gc
import json
import marshal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any
from zlib import crc32

from brickprof.journal import errands, lines
from brickprof.journal.damage import Damage
from brickprof.journal.errands import Errand
from brickprof.journal.layout import shown
from brickprof.records import Event

Columns = tuple[list[str], list[int], list[dict[str, Any]], list[int], list[int]]
"""Kinds, steps, fields, seqs and times."""
_LONG = 2**19


class Page:
    """The file of one rank: it may be read before anybody asks for it."""

    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._rank = path, rank
        self._errand: Errand | None = None
        self._state: tuple[int, ...] | None = None
        """Of the file, when it was begun."""

    def begin(self) -> bool:
        """Begins to read it beside whatever else is done, where it is long and that may be (``errands``): whether it
        does."""
        with suppress(OSError):
            if self._errand is None and errands.possible() and self._path.stat().st_size >= _LONG:
                self._state = self._now()
                self._errand = Errand(lambda: _packed(self._path))
        return self._errand is not None

    def read(self) -> tuple[list[Event], Damage]:
        """Every whole event, in the order written, and what was lost. A missing file is empty."""
        errand, self._errand = self._errand, None
        told = errand.answer() if errand is not None else None
        # Of a file that somebody still writes, what was read a while ago is too old: losses lie on the slate until they
        # stand in the file, and would be in neither.
        if told and self._now() == self._state:
            with suppress(EOFError, ValueError, TypeError), _uncollected():
                return _made(marshal.loads(told), self._rank), Damage(shown(self._path))
        return read_events(self._path, self._rank)

    def _now(self) -> tuple[int, ...] | None:
        """What changes when the file does; None where there is none."""
        try:
            state = self._path.stat()
        except OSError:
            return None
        return state.st_ino, state.st_size, state.st_mtime_ns


def read_events(path: Path, rank: int) -> tuple[list[Event], Damage]:
    """Every whole event of a file, in the order written, and what was lost. A missing file is empty."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    with _uncollected():
        columns = _at_once(data)
        if columns is None:
            return lines.parse_events(data, where=shown(path), rank=rank)
        return _made(columns, rank), Damage(shown(path))


def _packed(path: Path) -> bytes:
    """What ``Page.read`` makes events of, a third of the time later: plain values, which marshal takes as they are."""
    columns = _at_once(path.read_bytes())
    if columns is None:
        raise ValueError("to be read line by line")
    return marshal.dumps(columns)


def _made(columns: Columns, rank: int) -> list[Event]:
    return list(map(Event, *columns, repeat(rank)))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for cycles in garbage: documents by the ten thousand, and no cycle among them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _at_once(data: bytes) -> Columns | None:
    """The events of a file that is whole, column by column; None for any other."""
    if not data.endswith(b"\n"):
        return None if data else ([], [], [], [], [])
    written = data[:-1].split(b"\n")
    size = lines._CRC_SIZE
    bodies = [line[:-size] for line in written]
    # Of all lines at once: what each of them would have to end with, beside what they do.
    ends = b',"crc":"%08x"}' * len(bodies) % tuple(map(crc32, bodies))
    if ends != b"".join([line[-size:] for line in written]):
        return None
    if not data.startswith(lines._START) or data.count(b"\n" + lines._START) != len(written) - 1:
        return None
    try:
        return _columns(bodies)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _columns(bodies: list[bytes]) -> Columns | None:
    """Of lines without their checksums: ten thousand events are a few loops, not ten thousand."""
    text = b"[" + b"},".join(bodies) + b"}]"
    found: list[dict[str, Any]] = json.loads(text.decode("ascii"))
    if len(found) != len(bodies):
        return None
    seqs, times, kinds, steps = ([fields.pop(name) for fields in found] for name in ("seq", "t", "kind", "step"))
    if any(set(map(type, column)) != {int} for column in (seqs, times, steps)) or set(map(type, kinds)) != {str}:
        return None
    far = lines.FARTHEST
    if min(map(min, (seqs, times))) < 0 or min(steps) <= -far or max(map(max, (seqs, times, steps))) >= far:
        return None
    if b'"$' in text:
        for place in [place for place, body in enumerate(bodies) if b"$" in body and b'"$' in body]:
            found[place] = lines._restored(found[place])
    return kinds, steps, found, seqs, times
