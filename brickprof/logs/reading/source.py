"""The bytes of a log, wherever they lie: a file, packed or not, or what is piped in.

Enters: a path, or "-" for standard input. Leaves: its beginning, and then chunks of whole lines, of bounded size: of a
line without an end only the beginning is there, a file that unpacks into far more than any log would is refused. A
plain file can be read in parts, which together hold every line once. Where a large file is cut depends on its size and
its text alone, never on who reads it.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import select
import stat
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from brickprof.errors import UnreadableInput
from brickprof.logs.reading.clock import Clock
from brickprof.logs.reading.model import Head
from brickprof.text import clean

CHUNK = 4 << 20
HEAD = 64 << 10
LONGEST_LINE = 16 << 20
"""What is longer is cut there: it is no line that anybody wrote."""
PIECE = 32 << 20
"""A file of lines is read in pieces of about this size."""
_MANY_PIECES, _SMALLER = 8, 4
_LOOK_FOR_CUT = 1 << 20
_WRITER = 5.0
"""Seconds to wait for somebody to write into a named pipe."""
_MOST_UNPACKED = 64 << 30
_MOST_RATIO = 500
"""Text packs ten to fifty times; what unpacks into more than this, and into gigabytes, is no log."""
_SUSPECT = 1 << 30
_AT_ONCE = 256 << 10
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_WIDE = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
"""Text in two bytes a letter, as a redirection of PowerShell and some spreadsheets write it."""
_ENDINGS = (".gz", ".bz2", ".xz", ".zst", ".zstd")


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes ``start`` to ``end`` of a plain file; both lie at the begin of a line, or at the end of the file."""

    start: int
    end: int


class Source:
    """One log. ``chunks`` may be asked for again, unless it is a pipe."""

    def __init__(self, path: str | Path, part: Part | None = None, first_line: int = 1) -> None:
        self.path = str(path)
        self.part = part
        self.first_line = first_line
        """The number of the part's first line."""
        self.line_ends = 0
        """Of what ``chunks`` has given out so far."""
        self.clock = Clock()
        """When the lines of those were written."""
        self.damage: list[str] = []
        """What of the file could not be unpacked, in words."""
        self._piped: bytes | None = None
        self._head: bytes | None = None
        self._stream: IO[bytes] | None = None

    @cached_property
    def is_pipe(self) -> bool:
        """Whether it can be read only once."""
        try:
            return self.path == "-" or stat.S_ISFIFO(os.stat(self.path).st_mode)
        except (OSError, ValueError):
            return False

    @property
    def name(self) -> str:
        if self.path == "-":
            return "stdin"
        name = Path(self.path).name
        for ending in _ENDINGS:
            name = name.removesuffix(ending)
        return name

    @property
    def size(self) -> int:
        """Bytes on disk; 0 of a pipe."""
        return 0 if self.is_pipe else os.stat(self.path).st_size

    @property
    def packed(self) -> str:
        """How it is packed: gzip, bzip2, xz, zstd; utf-16-le or -be of a text that is written so; or not at all."""
        if self.is_pipe:
            return ""
        with self._plain() as stream:
            return _how(stream.read(6))

    # -- reading

    def head(self) -> Head:
        """The beginning, unpacked. Of a pipe it is kept, and comes again with the first chunk."""
        if self._head is None:
            if self.is_pipe:
                self._piped = start = _some(self._pipe(), HEAD)
                how = _how(start)
                self._head = _some(self._unpacked(io.BytesIO(start), how, 0), HEAD) if how else start
            else:
                with self.open() as stream:
                    self._head = _some(stream, HEAD)
        return Head(self.name, self._head, self.path)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The bytes, unpacked, from the beginning."""
        if self.is_pipe:
            yield self._unpacked_pipe()
            return
        how = self.packed
        with self._plain() as stream:
            yield self._unpacked(stream, how, self.size)

    def _pipe(self) -> IO[bytes]:
        if self._stream is None:
            self._stream = sys.stdin.buffer if self.path == "-" else _named_pipe(self.path)
        return self._stream

    def _unpacked_pipe(self) -> Any:
        """A pipe may hold a packed log too: its first bytes tell."""
        start = self._piped if self._piped is not None else _some(self._pipe(), HEAD)
        self._piped = start
        return self._unpacked(_Rest(start, self._pipe()), _how(start), 0)

    @contextmanager
    def _plain(self) -> Iterator[IO[bytes]]:
        shown = clean(self.path)
        try:
            described = os.stat(self.path)
            if stat.S_ISDIR(described.st_mode):
                raise UnreadableInput(f"{shown} is a folder.", "Name the files in it, or let analyze look for them.")
            if not (stat.S_ISREG(described.st_mode) or stat.S_ISFIFO(described.st_mode)):
                raise UnreadableInput(f"{shown} is not a file but a device or a socket.")
            stream = open(self.path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            raise UnreadableInput(f"there is no file {shown}.") from None
        except ValueError:
            raise UnreadableInput(f"{shown} is no name that a file can have.") from None
        except OSError as error:
            raise UnreadableInput(f"{shown} cannot be read: {error.strerror or error}.") from None
        with stream:
            yield stream

    def _unpacked(self, stream: Any, how: str, size: int) -> Any:
        if not how:
            return stream
        if how in _WIDE.values():
            return _Narrowed(stream, how)
        if how == "gzip":
            opened: Any = gzip.GzipFile(fileobj=stream)
        elif how == "bzip2":
            opened = bz2.BZ2File(stream)
        elif how == "xz":
            opened = lzma.LZMAFile(stream)  # noqa: SIM115
        else:
            import pyarrow as pa

            opened = pa.CompressedInputStream(stream, "zstd")
        return _Bounded(opened, size, clean(self.path), self.damage)

    def chunks(self, size: int = CHUNK) -> Iterator[bytes]:
        """All bytes in chunks that end with a line; the last one ends as the file does."""
        self.line_ends, self.clock = 0, Clock()
        with self.open() as stream:
            left = None
            if self.part is not None:
                stream.seek(self.part.start)
                left = self.part.end - self.part.start
            for chunk in _in_lines(stream, size, left):
                self.line_ends += self.clock.look(chunk, self.first_line + self.line_ends)
                yield chunk

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Line by line, numbered; for small files and for formats that have to look at each."""
        number = self.first_line
        for chunk in self.chunks():
            ended = chunk.endswith(b"\n")
            for line in chunk.split(b"\n")[: -1 if ended else None]:
                yield number, line
                number += 1
            number -= not ended  # cut at a progress bar's return: the line goes on

    def whole(self, most: int = 512 << 20) -> bytes:
        """All of it, for formats that are one object."""
        with self.open() as stream:
            data = _some(stream, most + 1)
        if len(data) > most:
            raise UnreadableInput(f"{clean(self.path)} is one object of more than {most >> 20} MiB.")
        return data

    # -- in parts

    def parts(self, count: int) -> list[Part]:
        """About equal parts of a plain file, cut between lines that are alike; none where it is packed or a pipe."""
        return self._cut_at([self.size * number // count for number in range(1, count)])

    def pieces(self) -> list[Part]:
        """The parts that a file of lines is always read in; none of one that is read at once.

        The last ones of a large file are smaller: of several processes none waits long for another at the end.
        """
        if self.is_pipe:
            return []
        count = self.size // PIECE
        if count < _MANY_PIECES:
            return self.parts(count)
        fine = _SMALLER * count
        places = [*range(_SMALLER, fine - 2 * _SMALLER, _SMALLER), *range(fine - 2 * _SMALLER, fine)]
        return self._cut_at([self.size * place // fine for place in places])

    def _cut_at(self, places: Iterable[int]) -> list[Part]:
        """The parts between the lines that begin behind these places."""
        if self.is_pipe or self.packed:
            return []
        size, cuts = self.size, [0]
        with self._plain() as stream:
            for place in places:
                cut = _cut(stream, max(place, cuts[-1]))
                if cut is not None:
                    cuts.append(min(cut, size))
        cuts.append(size)
        found = [Part(start, end) for start, end in pairwise(cuts) if end > start]
        return found if len(found) > 1 else []


class _Rest(io.RawIOBase):
    """What was read of a pipe already, and then the pipe."""

    def __init__(self, read: bytes, stream: IO[bytes]) -> None:
        self._read, self._stream = io.BytesIO(read), stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._read.read(size) or self._stream.read(size)


class _Bounded:
    """A packed file that does not unpack without end; what is damaged ends it, and nothing before it is lost."""

    def __init__(self, stream: Any, size: int, shown: str, damage: list[str]) -> None:
        self._stream, self._size, self._shown, self._damage = stream, size or _SUSPECT, shown, damage
        self._out = 0
        # What is before the damage comes with read1; read would raise and give nothing.
        self._take = getattr(stream, "read1", stream.read)

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes, and all that are left without it; less than asked for is not the end."""
        if size < 0:
            return b"".join(iter(lambda: self.read(_AT_ONCE), b""))
        try:
            data = bytes(self._take(min(size, _AT_ONCE)))
        except (OSError, EOFError, lzma.LZMAError, ValueError, zlib.error) as error:
            told = f"cut off or damaged, {self._out:,} bytes were unpacked: {clean(error, limit=120)}"
            if told not in self._damage:
                self._damage.append(told)
            return b""
        self._out += len(data)
        if self._out > _MOST_UNPACKED or (self._out > _SUSPECT and self._out > _MOST_RATIO * self._size):
            raise UnreadableInput(
                f"{self._shown} unpacks into more than {max(self._out >> 30, 1)} GiB.",
                "That is no log; unpack it yourself if you trust it.",
            )
        return data


class _Narrowed:
    """A text of two bytes a letter, as UTF-8; what is no letter is shown as such."""

    def __init__(self, stream: Any, how: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(how)("replace")
        self._begun = False
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes, and all that are left without it; less than asked for is not the end."""
        if size < 0:
            return b"".join(iter(lambda: self.read(_AT_ONCE), b""))
        while not self._left:
            raw = self._stream.read(_AT_ONCE)
            text = self._decoder.decode(raw, final=not raw)
            if not self._begun and text:
                text, self._begun = text.removeprefix("\ufeff"), True
            self._left = text.encode("utf-8", "replace")
            if not raw:
                break
        given, self._left = self._left[:size], self._left[size:]
        return given


def _some(stream: Any, size: int) -> bytes:
    """``size`` bytes, or as many as there are."""
    parts, left = [], size
    while left > 0:
        read = stream.read(left)
        if not read:
            break
        parts.append(bytes(read))
        left -= len(read)
    return b"".join(parts)


def _in_lines(stream: Any, size: int, left: int | None) -> Iterator[bytes]:
    """``left`` bytes, or all, in chunks that end with a line. What is too long for a line is left out from there on."""
    rest, over = b"", False
    while True:
        wanted = size if left is None else min(size, left)
        read = _some(stream, wanted) if wanted else b""
        if left is not None:
            left -= len(read)
        if not read:
            if rest:
                yield rest
            return
        if over:
            end = read.find(b"\n")
            if end < 0:
                continue
            read, over = read[end + 1 :], False
        cut = read.rfind(b"\n")
        if cut >= 0:
            yield b"".join((rest, memoryview(read)[: cut + 1]))
            rest = read[cut + 1 :]
            continue
        whole = rest + read
        cut = _last_line_end(whole)
        if cut < 0 and len(whole) > LONGEST_LINE:
            yield whole[:LONGEST_LINE] + b"\n"
            rest, over = b"", True
            continue
        rest = whole[cut + 1 :]
        if cut >= 0:
            yield whole[: cut + 1]


def _last_line_end(data: bytes) -> int:
    """Where the last line ends; a progress bar that never ends its line is cut where it begins anew."""
    cut = data.rfind(b"\n")
    return cut if cut >= 0 or len(data) < CHUNK else data.rfind(b"\r")


def _how(start: bytes) -> str:
    wide = _WIDE.get(start[:2], "")
    if wide and start[2:6]:  # every other byte of plain letters is 0
        return wide if not any(start[3:6:2] if wide.endswith("le") else start[2:6:2]) else ""
    return next((how for magic, how in _PACKED.items() if start.startswith(magic)), "")


_DIGITS = re.compile(rb"[-+]?\d[\d.,]*(?:e[-+]?\d+)?|nan|inf")


def _cut(stream: IO[bytes], near: int) -> int | None:
    """The begin of a line at ``near`` or behind, between two lines that are alike: not inside a stack of calls. None
    where there is no such line nearby."""
    stream.seek(near)
    stream.readline(LONGEST_LINE)
    first = stream.tell()
    text = stream.read(_LOOK_FOR_CUT)
    before: bytes | None = None
    begin, end = 0, text.find(b"\n")
    while end >= 0:
        shape = _DIGITS.sub(b"0", text[begin : min(end, begin + 400)])
        if shape == before and shape.strip() and not shape.startswith((b" ", b"\t")):
            return first + begin
        before, begin = shape, end + 1
        end = text.find(b"\n", begin)
    return first if b"\n" in text or len(text) < _LOOK_FOR_CUT else None


def _named_pipe(path: str) -> IO[bytes]:
    """A pipe that somebody writes to; one that nobody opens within seconds is not waited for."""
    shown = clean(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise UnreadableInput(f"{shown} cannot be read: {error.strerror or error}.") from None
    waiting = select.poll()
    waiting.register(handle, select.POLLIN | select.POLLHUP)
    until = time.monotonic() + _WRITER
    while not waiting.poll(100):
        if time.monotonic() > until:
            os.close(handle)
            raise UnreadableInput(f"{shown} is a pipe, and nobody writes to it.")
    os.set_blocking(handle, True)
    return os.fdopen(handle, "rb")
