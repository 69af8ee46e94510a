"""A long file of frames, read while others work, and of its columns only those that somebody asks for.

Enters: a ``.arrow`` file of which no column holds text. Leaves: its columns as numpy arrays; or nothing, where the file
is damaged anywhere but in its tail: ``read_table`` reads those too, and says the same of every other one, only later.

Every byte is checked here as well, many frames at a time: the checksum of a stretch of frames of one length follows
from theirs, and the one call that makes it leaves other threads alone for milliseconds. Where the columns lie in a
frame is told by the head of its message, which all frames of as many rows share: it is asked for once.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from threading import Lock, Thread
from typing import Any, NamedTuple

from brickprof.journal import errands, frames
from brickprof.journal.beside import Beside
from brickprof.journal.columns import numpy_type
from brickprof.journal.damage import Damage
from brickprof.journal.layout import shown
from brickprof.journal.pieces import Column, Layout, Odd, Piece, Place, Stretch
from brickprof.journal.sums import crc32

Bytes = bytearray | mmap.mmap
_PIECE, _MARGIN = 2**24, 2**20
_FEW = 16
"""Frames of a length below which their checksums are made one by one, and from which on a column is read whole."""
_OFTEN_ZERO = frozenset({"nan", "inf"})


class Sweep:
    """Reads from its making on: in a process beside this one where there may be one (``beside``), else in a thread.

    Whoever asks what it found helps it along.
    """

    def __init__(self, path: Path, name: str, wanted: Sequence[str], *, piece: int = _PIECE) -> None:
        self.damage = Damage(shown(path))
        self.checksum = 0
        """CRC-32 of the file, where all of it was read."""
        self._name, self._wanted, self._piece = name, tuple(wanted), piece
        self._pieces: dict[int, Piece] = {}
        self._layouts: dict[bytes, Layout] = {}
        self._stretches: list[Stretch] = []
        self._columns: dict[str, Column] = {}
        self._lock = Lock()
        self._odd = self._over = False
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._file).st_size
        self._number = -(-self.size // piece)
        self._beside = self._begun()
        self._turns = iter(range(self._number)) if self._beside is None else self._beside.turns()
        self._thread = _started(self._work, "brickprof-sweep") if self._beside is None else None

    def __del__(self) -> None:
        os.close(self._file)

    @property
    def whole(self) -> bool:
        """Whether the file could be read this way; known when all of it was, which is helped along."""
        with self._lock:
            if not self._over:
                self._work()
                self._wait()
                self._over = True
                try:
                    self._join()
                except (Odd, OSError):
                    self._odd = True
                self._pieces.clear()
                self._beside = None
        return not self._odd

    @property
    def rows(self) -> int:
        return sum(stretch.rows for stretch in self._stretches)

    def column(self, name: str) -> Column:
        """One column of all rows; one that nobody wanted before is fetched."""
        if name not in self._columns:
            self._columns[name] = _joined([self._fetched(stretch, name) for stretch in self._stretches])
        return self._columns[name]

    def some(self, name: str, places: Any) -> Column:
        """One column of some rows, which ascend; of few frames it fetches only these."""
        import numpy as np

        starts, _, rows = self._index
        ends = np.cumsum(rows)
        inside = np.searchsorted(ends, places, side="right")
        if name in self._columns or len(np.unique(inside)) > _FEW:
            column = self.column(name)
        else:
            chosen = np.unique(inside)
            column = _joined([self._fetched(self._frame(int(starts[frame])), name) for frame in chosen])
            places = (
                places
                - (ends - rows)[inside]
                + (np.cumsum(rows[chosen]) - rows[chosen])[np.searchsorted(chosen, inside)]
            )
        values = None if column.values is None else column.values[places]
        return Column(len(places), values, None if column.present is None else column.present[places])

    def missing(self, name: str) -> int:
        """How many rows have no value there."""
        return sum(stretch.layout.places[name].missing * stretch.number for stretch in self._stretches)

    def around(self, mask: Any) -> tuple[Any, Any]:
        """The frames with rows that ``mask`` has, as an Arrow table of all columns; and which of its rows these are."""
        import numpy as np
        import pyarrow as pa

        kept, chosen = [], [mask[:0]]
        starts, lengths, rows = self._index
        begins = np.cumsum(rows) - rows
        some = np.logical_or.reduceat(mask, begins) if len(rows) else mask
        for place in np.flatnonzero(some).tolist():
            kept.append(_taken(self._file, int(starts[place]), int(lengths[place])))
            chosen.append(mask[begins[place] : begins[place] + rows[place]])
        stream = b"".join([frames.schema_frame(self._name), *kept])
        return pa.ipc.open_stream(stream).read_all().replace_schema_metadata(None), np.concatenate(chosen)

    # -- reading

    def _begun(self) -> Beside | None:
        """The process beside this one; None where there can be none. What both need is loaded before there are two."""
        if not errands.possible():
            return None
        import numpy as np  # noqa: F401
        import pyarrow as pa  # noqa: F401

        if not errands.possible():  # they have threads of their own
            return None
        try:
            return Beside(self._number, self.size, self._mapped)
        except (OSError, ValueError):
            return None

    def _mapped(self, number: int) -> Piece:
        """One piece, straight from the pages of the file. Who cuts it off meanwhile kills the process that reads so,
        which is only for one beside this to risk."""
        at = number * self._piece
        if at % mmap.ALLOCATIONGRANULARITY:
            return self._taken(at, self._buffer())
        flags, size = mmap.MAP_PRIVATE | mmap.MAP_POPULATE, min(self._piece + _MARGIN, self.size - at)
        with mmap.mmap(self._file, size, flags, mmap.PROT_READ, offset=at) as data, memoryview(data) as view:
            return self._found(at, data, view)

    def _buffer(self) -> bytearray:
        return bytearray(min(self._piece + _MARGIN, self.size))

    def _work(self) -> None:
        self._take(self._turns)

    def _take(self, numbers: Iterator[int]) -> None:
        try:
            buffer = bytearray()
            for number in numbers:
                if self._odd:
                    continue  # nobody is to take it
                buffer = buffer or self._buffer()
                self._pieces[number] = self._taken(number * self._piece, buffer)
        except Exception:  # of a file that may hold anything
            self._odd = True

    def _wait(self) -> None:
        """Until nobody is at work on it any more, and nothing is left to be done."""
        if self._thread is not None:
            self._thread.join()
        if self._beside is not None:
            if self._odd:
                self._take(self._turns)
            self._pieces |= self._beside.taken()
            self._take(iter([number for number in range(self._number) if number not in self._pieces]))

    def _taken(self, at: int, buffer: bytearray) -> Piece:
        view = memoryview(buffer)[: min(len(buffer), self.size - at)]
        _fill(self._file, view, at)
        return self._found(at, buffer, view)

    def _found(self, at: int, data: Bytes, view: memoryview) -> Piece:
        """The frames that begin in one piece, which stands ``at`` in the file."""
        limit = min(self._piece, self.size - at)
        first = _first(data, len(view), limit) if at else self._opened(data, len(view))
        piece = Piece(at + first, {name: [] for name in self._wanted})
        self._keep(data, view, first, limit, at, piece)
        if piece.last - at < limit and (length := self._reaching(piece.last)):
            alone = bytearray(_taken(self._file, piece.last, length))
            self._keep(alone, memoryview(alone), 0, 1, piece.last, piece)
        return piece

    def _keep(self, data: Bytes, view: memoryview, begin: int, limit: int, at: int, piece: Piece) -> None:
        """Takes whole frames of ``data``, which stands ``at`` in the file, from ``begin`` to ``limit`` into a piece."""
        heads = list(_heads(data, begin, len(view), limit))
        checked = _check(data, view, begin, heads)
        found = list(self._laid_out(data, begin, heads))
        for name, kept in piece.columns.items():
            kept.append(_cut(data, view, found, name, self._name))
        piece.stretches += [stretch._replace(start=at + stretch.start) for stretch in found]
        size = sum(head.length for head in heads)
        piece.checksum = _combined(piece.checksum, checked, size)
        piece.last += size

    def _opened(self, buffer: Bytes, filled: int) -> int:
        """Where the first frame behind the one that says what the columns are begins."""
        import pyarrow as pa

        at = buffer.find(frames._MARK, 0, filled)
        opening = frames._frame_at(buffer, memoryview(buffer)[:filled], at, 0) if at >= 0 else None
        if opening is None or opening.seq or opening.start:
            raise Odd
        if not pa.ipc.read_schema(pa.py_buffer(bytes(buffer[: opening.end]))).equals(frames.schema(self._name)):
            raise Odd
        return opening.end

    def _reaching(self, start: int) -> int:
        """The length of the frame at ``start`` that reaches beyond its piece; 0 where there is none that is whole."""
        head = _taken(self._file, start, min(_MARGIN, self.size - start))
        text = frames._TEXT.search(head)
        sound = text is not None and text.start() == int(text[1]) and start + int(text[2]) <= self.size
        return int(text[2]) if text is not None and sound else 0

    def _laid_out(self, data: Bytes, at: int, heads: list[_Head]) -> Iterator[Stretch]:
        """The frames as stretches of one length and layout."""
        now = Stretch(at, 0, 0, Layout(0, {}))
        for head in heads:
            key = bytes(data[at : at + head.text]) + bytes(data[at + head.text + len(frames._BLANK) : at + head.body])
            layout = self._layouts.get(key)
            if layout is None:
                layout = self._layouts[key] = _layout(self._name, bytes(data[at : at + head.length]))
            if layout.rows != head.rows or not head.rows or head.seq == 0:
                raise Odd
            if layout is now.layout and head.length == now.length:
                now = now._replace(number=now.number + 1)
            else:
                if now.number:
                    yield now
                now = Stretch(at, head.length, 1, layout)
            at += head.length
        if now.number:
            yield now

    def _join(self) -> None:
        """The pieces, if each goes on where the one before it ends; what is behind the last whole frame is lost."""
        pieces = [self._pieces[number] for number in sorted(self._pieces)]
        if self._odd or len(pieces) != self._number or not pieces:
            raise Odd
        end = pieces[0].first
        found = crc32(_taken(self._file, 0, end))
        for piece in pieces:
            if piece.stretches:
                if piece.first != end:
                    raise Odd
                found, end = _combined(found, piece.checksum, piece.last - piece.first), piece.last
        if end < self.size:
            tail = _taken(self._file, end, self.size - end)
            self.damage, found = _lost(tail, self.damage.where), crc32(tail, found)
        self.checksum = found
        self._stretches = [stretch for piece in pieces for stretch in piece.stretches]
        # By two threads: that is copying, for which none needs the interpreter.
        names = iter(self._wanted)
        other = _started(lambda: self._join_columns(pieces, names), "brickprof-join")
        self._join_columns(pieces, names)
        if other is not None:
            other.join()
        if len(self._columns) < len(set(self._wanted)):
            raise Odd

    def _join_columns(self, pieces: list[Piece], names: Iterator[str]) -> None:
        with suppress(Exception):  # out of memory, say: then the slow way tries
            for name in names:
                self._columns[name] = _joined([column for piece in pieces for column in piece.columns[name]])

    # -- fetching

    @cached_property
    def _index(self) -> tuple[Any, Any, Any]:
        """Start, length and rows of every frame."""
        import numpy as np

        number = [stretch.number for stretch in self._stretches]
        starts = [stretch.start + np.arange(stretch.number) * stretch.length for stretch in self._stretches]
        lengths = np.repeat([stretch.length for stretch in self._stretches], number).astype(np.int64)
        rows = np.repeat([stretch.layout.rows for stretch in self._stretches], number).astype(np.int64)
        return np.concatenate([np.empty(0, np.int64), *starts]), lengths, rows

    def _frame(self, start: int) -> Stretch:
        """The frame that begins at ``start``, by itself."""
        place = bisect_right(self._stretches, start, key=lambda stretch: stretch.start) - 1
        return self._stretches[place]._replace(start=start, number=1)

    def _fetched(self, stretch: Stretch, name: str) -> Column:
        """One column of a stretch, without what lies between."""
        import numpy as np

        place, rows = stretch.layout.places[name], stretch.layout.rows
        kind = _kinds(self._name)[name]
        if place.missing == rows or kind is None:
            return Column(stretch.rows, None)
        values = self._strewn(stretch, place.values, rows * np.dtype(kind).itemsize).view(kind).reshape(-1)
        if not place.missing:
            return Column(stretch.rows, values)
        return Column(stretch.rows, values, _unpacked(self._strewn(stretch, place.bits, (rows + 7) // 8), rows))

    def _strewn(self, stretch: Stretch, at: int, size: int) -> Any:
        """The bytes ``at`` of each frame: an array with a row a frame."""
        import numpy as np

        found = np.empty((stretch.number, size), np.uint8)
        view = memoryview(found.data).cast("B")
        for place in range(stretch.number):
            _fill(self._file, view[place * size : (place + 1) * size], stretch.start + place * stretch.length + at)
        return found


class _Head(NamedTuple):
    length: int
    text: int
    body: int
    seq: int
    rows: int
    crc: int
    digits: bytes


def _first(data: Bytes, filled: int, limit: int) -> int:
    """Where the first frame begins that begins in ``data``; ``limit`` where none does."""
    found = data.find(frames._MARK, 0, filled)
    while found >= 0:
        text = frames._TEXT.match(data, found)
        start = found - int(text[1]) if text is not None else -1
        if start >= 0 and data[start : start + 4] == frames._CONTINUATION:
            return min(start, limit)
        found = data.find(frames._MARK, found + 1, filled)
    return limit


def _heads(data: Bytes, at: int, filled: int, limit: int) -> Iterator[_Head]:
    """The frames, one behind the other, that begin from ``at`` to before ``limit`` and end in ``data``."""
    place = -1
    while at < limit:
        text = frames._TEXT.match(data, at + place) if place >= 0 else None
        if text is None:
            place = data.find(frames._MARK, at, min(filled, at + _MARGIN)) - at
            text = frames._TEXT.match(data, at + place) if place >= 0 else None
        if text is None or int(text[1]) != place or data[at : at + 4] != frames._CONTINUATION:
            return
        length, body = int(text[2]), 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        if at + length > filled or not place + len(frames._BLANK) <= body <= length:
            return
        yield _Head(length, place, body, int(text[3]), int(text[5]), int(text[4], 16), text[4])
        at += length


def _check(data: Bytes, view: memoryview, at: int, heads: list[_Head]) -> int:
    """The checksum of some frames; raises where one of them is not what was written."""
    found, start = 0, at
    sizes = {head.length for head in heads} | {head.length - head.text for head in heads}
    if len(heads) < _FEW * len(sizes):
        for head in heads:
            if frames._frame_at(data, view, at + head.text, at) is None:
                raise Odd
            at += head.length
        return crc32(view[start:at])
    blank = crc32(frames._ZEROS)
    for head in heads:
        # What was summed had zeros for its own digits: here they stand as they are.
        digits = _shifted(_shift(head.length - head.text - frames._CRC_AT - 8), crc32(head.digits) ^ blank)
        found = _shifted(_shift(head.length), found) ^ head.crc ^ digits
        at += head.length
    if found != crc32(view[start:at]):
        raise Odd
    return found


def _combined(before: int, behind: int, size: int) -> int:
    """The checksum of bytes from that of their beginning and that of the ``size`` bytes behind it."""
    power = 0
    while size:
        if size & 1:
            before = _shifted(_doubled(power), before)
        size, power = size >> 1, power + 1
    return before ^ behind


@cache
def _doubled(times: int) -> tuple[tuple[int, ...], ...]:
    """``_shift`` of 1, 2, 4, ... bytes."""
    if not times:
        return _shift(1)
    half = _doubled(times - 1)
    return tuple(tuple(_shifted(half, crc) for crc in table) for table in half)


@cache
def _shift(size: int) -> tuple[tuple[int, ...], ...]:
    """What ``size`` zero bytes do to a CRC-32, for each value of each of its four bytes: zlib says it bit by bit."""
    zeros = bytes(size)
    nothing = crc32(zeros)
    bits = [crc32(zeros, 1 << bit) ^ nothing for bit in range(32)]
    tables = []
    for byte in range(4):
        table = [0]
        for bit in bits[8 * byte : 8 * byte + 8]:
            table += [known ^ bit for known in table]
        tables.append(tuple(table))
    return tuple(tables)


def _shifted(tables: tuple[tuple[int, ...], ...], crc: int) -> int:
    low, next_, third, high = tables
    return low[crc & 255] ^ next_[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ high[crc >> 24]


def _layout(name: str, frame: bytes) -> Layout:
    """Where the columns of ``frame`` lie, as Arrow reads it."""
    import numpy as np
    import pyarrow as pa

    opening = frames.schema_frame(name)
    stream = pa.py_buffer(opening + frame)
    batch = pa.ipc.open_stream(stream).read_next_batch()
    base, rows, places = stream.address + len(opening), batch.num_rows, {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        bits, values = column.buffers()[0], column.buffers()[-1]
        kind = _kinds(name)[field.name]
        place = Place(_offset(values, base), _offset(bits, base), column.null_count)
        size = rows * np.dtype(kind).itemsize if kind is not None else 0
        some = 0 < place.missing < rows
        if column.offset or (kind is not None and place.missing < rows and not 0 < place.values <= len(frame) - size):
            raise Odd
        if some and not 0 < place.bits <= len(frame) - (rows + 7) // 8:
            raise Odd
        places[field.name] = place
    return Layout(rows, places)


def _offset(buffer: Any, base: int) -> int:
    return -1 if buffer is None else int(buffer.address - base)


@cache
def _kinds(name: str) -> dict[str, Any]:
    """NumPy's type of each column; None of what is no number."""
    return {field.name: numpy_type(field.type) for field in frames.schema(name)}


def _cut(data: Bytes, view: memoryview, stretches: list[Stretch], name: str, table: str) -> Column:
    """One column of stretches that are in memory."""
    import numpy as np

    rows = sum(stretch.rows for stretch in stretches)
    places = [stretch.layout.places[name] for stretch in stretches]
    if any(place.missing for place in places):
        return _joined([_with_gaps(data, stretch, name, table) for stretch in stretches])
    kind = np.dtype(_kinds(table)[name])
    values = np.empty(rows, kind)
    # Byte by byte of Python's own: numpy would let go of the interpreter for each frame, and wait to get it back.
    into, at = memoryview(values.data).cast("B"), 0
    for stretch, place in zip(stretches, places, strict=True):
        size = stretch.layout.rows * kind.itemsize
        for start in range(stretch.start + place.values, stretch.end, stretch.length):
            into[at : at + size] = view[start : start + size]
            at += size
    if name in _OFTEN_ZERO and not values.any():
        values = np.broadcast_to(kind.type(0), rows)
    return Column(rows, values)


def _with_gaps(data: Bytes, stretch: Stretch, name: str, table: str) -> Column:
    import numpy as np

    place, rows, number = stretch.layout.places[name], stretch.layout.rows, stretch.number
    if place.missing == rows:
        return Column(stretch.rows, None)
    kind = np.dtype(_kinds(table)[name])
    strides = stretch.length, kind.itemsize
    values = np.ndarray((number, rows), kind, data, stretch.start + place.values, strides).flatten()
    if not place.missing:
        return Column(stretch.rows, values)
    bits = np.ndarray((number, (rows + 7) // 8), np.uint8, data, stretch.start + place.bits, (stretch.length, 1))
    return Column(stretch.rows, values, _unpacked(bits, rows))


def _unpacked(bits: Any, rows: int) -> Any:
    import numpy as np

    return np.unpackbits(bits, axis=1, count=rows, bitorder="little").reshape(-1).astype(bool)


def _joined(columns: list[Column]) -> Column:
    import numpy as np

    rows = sum(column.rows for column in columns)
    known = [column for column in columns if column.values is not None]
    if not known:
        return Column(rows, None)
    kind = known[0].values.dtype
    if len(known) == len(columns) and all(column.values.strides == (0,) for column in columns if column.rows):
        return Column(rows, np.zeros(rows, kind))  # memory that nobody touched takes no time
    values = np.empty(rows, kind)
    gaps = len(known) < len(columns) or any(column.present is not None for column in columns)
    present = np.ones(rows, bool) if gaps else None
    at = 0
    for column in columns:
        here = slice(at, at + column.rows)
        values[here] = 0 if column.values is None else column.values
        if present is not None:
            present[here] = column.values is not None if column.present is None else column.present
        at += column.rows
    return Column(rows, values, present)


def _lost(tail: bytes, where: str) -> Damage:
    """What a writer that was killed left behind its last whole frame."""
    if next(frames.frames(tail), None) is not None:
        raise Odd  # damage with more behind it
    headers = list(frames._TEXT.finditer(tail))
    return Damage(where, len(tail), sum(int(header[5]) for header in headers) if headers else None)


def _started(work: Callable[[], None], name: str) -> Thread | None:
    """A thread that does ``work``; None where none is to be had, and whoever asks for it does it alone."""
    thread = Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _taken(file: int, at: int, size: int) -> bytes:
    data = bytearray(size)
    _fill(file, memoryview(data), at)
    return bytes(data)


def _fill(file: int, view: memoryview, at: int) -> None:
    done = 0
    while done < len(view):
        got = os.preadv(file, [view[done:]], at + done)
        if not got:
            raise Odd
        done += got
