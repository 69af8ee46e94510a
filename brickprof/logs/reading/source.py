"""The bytes of a log, wherever they lie: a file, packed or not, or what is piped in.

Enters: a path, or "-" for standard input. Leaves: its beginning, and then chunks of whole lines, of bounded size: a
line without an end is cut, a file that unpacks into far more than any log would is refused. A plain file can be read in
parts, which together hold every line once.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from brickprof.errors import UnreadableInput
from brickprof.logs.reading.model import Head
from brickprof.text import clean

CHUNK = 4 << 20
HEAD = 64 << 10
LONGEST_LINE = 16 << 20
"""What is longer is cut there: it is no line that anybody wrote."""
_MOST_UNPACKED = 64 << 30
_MOST_RATIO = 500
"""Text packs ten to fifty times; what unpacks into more than this, and into gigabytes, is no log."""
_SUSPECT = 1 << 30
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
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
        self._piped: bytes | None = None
        self._head: bytes | None = None

    @property
    def is_pipe(self) -> bool:
        return self.path == "-"

    @property
    def name(self) -> str:
        if self.is_pipe:
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
        """How it is packed: gzip, bzip2, xz, zstd, or not at all."""
        if self.is_pipe:
            return ""
        with self._plain() as stream:
            start = stream.read(6)
        return next((how for magic, how in _PACKED.items() if start.startswith(magic)), "")

    # -- reading

    def head(self) -> Head:
        """The beginning, unpacked. Of a pipe it is kept, and comes again with the first chunk."""
        if self._head is None:
            if self.is_pipe:
                self._head = self._piped = _some(sys.stdin.buffer, HEAD)
            else:
                with self.open() as stream:
                    self._head = _some(stream, HEAD)
        return Head(self.name, self._head, self.path)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The bytes, unpacked, from the beginning."""
        if self.is_pipe:
            yield _Rest(self._piped or b"", sys.stdin.buffer)  # type: ignore[misc]
            return
        how = self.packed
        with self._plain() as stream:
            yield self._unpacked(stream, how)

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
        except OSError as error:
            raise UnreadableInput(f"{shown} cannot be read: {error.strerror or error}.") from None
        with stream:
            yield stream

    def _unpacked(self, stream: IO[bytes], how: str) -> Any:
        if not how:
            return stream
        if how == "gzip":
            opened: Any = gzip.GzipFile(fileobj=stream)
        elif how == "bzip2":
            opened = bz2.BZ2File(stream)
        elif how == "xz":
            opened = lzma.LZMAFile(stream)  # noqa: SIM115
        else:
            import pyarrow as pa

            opened = pa.CompressedInputStream(stream, "zstd")
        return _Bounded(opened, self.size, clean(self.path))

    def chunks(self, size: int = CHUNK) -> Iterator[bytes]:
        """All bytes in chunks that end with a line; the last one ends as the file does."""
        with self.open() as stream:
            left = None
            if self.part is not None:
                stream.seek(self.part.start)
                left = self.part.end - self.part.start
            rest = b""
            while True:
                wanted = size if left is None else min(size, left)
                read = _some(stream, wanted) if wanted else b""
                if left is not None:
                    left -= len(read)
                if not read:
                    if rest:
                        yield rest
                    return
                whole = rest + read if rest else read
                cut = _last_line_end(whole)
                if cut < 0:
                    if len(whole) > LONGEST_LINE:
                        yield whole[:LONGEST_LINE] + b"\n"
                        whole = b""
                    rest = whole
                    continue
                rest = whole[cut + 1 :]
                yield whole[: cut + 1]

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Line by line, numbered; for small files and for formats that have to look at each."""
        number = self.first_line
        for chunk in self.chunks():
            for line in chunk.split(b"\n")[: None if not chunk.endswith(b"\n") else -1]:
                yield number, line
                number += 1

    def whole(self, most: int = 512 << 20) -> bytes:
        """All of it, for formats that are one object."""
        with self.open() as stream:
            data = _some(stream, most + 1)
        if len(data) > most:
            raise UnreadableInput(f"{clean(self.path)} is one object of more than {most >> 20} MiB.")
        return data

    # -- in parts

    def parts(self, count: int) -> list[Part]:
        """About equal parts of a plain file, cut between lines; one part where it is packed or a pipe."""
        if self.is_pipe or count < 2 or self.packed:
            return []
        size = self.size
        cuts = [0]
        with self._plain() as stream:
            for number in range(1, count):
                stream.seek(max(size * number // count, cuts[-1]))
                stream.readline(LONGEST_LINE)
                cuts.append(min(stream.tell(), size))
        cuts.append(size)
        return [Part(start, end) for start, end in pairwise(cuts) if end > start]


class _Rest(io.RawIOBase):
    """What was read of a pipe already, and then the pipe."""

    def __init__(self, read: bytes, stream: IO[bytes]) -> None:
        self._read, self._stream = io.BytesIO(read), stream

    def read(self, size: int = -1) -> bytes:
        return self._read.read(size) or self._stream.read(size)


class _Bounded:
    """A packed file that does not unpack without end; what is damaged ends it, and nothing before it is lost."""

    def __init__(self, stream: Any, size: int, shown: str) -> None:
        self._stream, self._size, self._shown = stream, max(size, 1), shown
        self._out = 0

    def read(self, size: int = -1) -> bytes:
        try:
            data: bytes = self._stream.read(size)
        except (OSError, EOFError, lzma.LZMAError):
            return b""  # cut off or damaged: what was whole has been read
        self._out += len(data)
        if self._out > _MOST_UNPACKED or (self._out > _SUSPECT and self._out > _MOST_RATIO * self._size):
            raise UnreadableInput(
                f"{self._shown} unpacks into more than {self._out >> 30} GiB.",
                "That is no log; unpack it yourself if you trust it.",
            )
        return data


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


def _last_line_end(data: bytes) -> int:
    """Where the last line ends; a progress bar that never ends its line is cut where it begins anew."""
    cut = data.rfind(b"\n")
    return cut if cut >= 0 or len(data) < CHUNK else data.rfind(b"\r")
