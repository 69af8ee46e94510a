"""Spans and samples as frames: Arrow IPC messages that carry their own length and checksum.

Enters: rows; or the bytes of a ``.arrow`` file, whatever happened to them. Leaves: one message; or a table
of every row that is still whole, and a count of the rest.

The file is a plain Arrow stream: ``pyarrow.ipc.open_stream`` reads it. Every message, the schema's too, has a
fixed-width text among its custom metadata that makes it findable and checkable on its own:

    BPF1 off=00000104 len=00002432 seq=000000000007 crc=9a3f00c1 rows=00000077 steps=...:...

``off`` is where the text stands in the message, ``len`` the length of the message with its body, ``crc``
the CRC-32 of the message with these eight digits as zeros.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from brickprof.journal.columns import column
from brickprof.journal.damage import Damage
from brickprof.journal.layout import shown
from brickprof.journal.sheets import TABLE, Sheet
from brickprof.journal.sheets import columns as columns_of
from brickprof.records import HISTOGRAM_BINS

MOST_ROWS = 4096
"""Rows of one frame: its length must fit eight digits."""
ENOUGH_ROWS = 512
"""Rows after which a frame ends with the step."""

_KEY = "brickprof.frame"
_MARK = b"BPF1 off="
_BLANK = f"BPF1 off={0:08d} len={0:08d} seq={0:012d} crc={0:08x} rows={0:08d} steps={0:+020d}:{0:+020d}"
_TEXT = re.compile(
    rb"BPF1 off=(\d{8}) len=(\d{8}) seq=(\d{12}) crc=([0-9a-f]{8}) "
    rb"rows=(\d{8}) steps=([+-]\d{19}):([+-]\d{19})"
)
_CRC_AT = _BLANK.index("crc=") + 4
_ZEROS = b"00000000"
_CONTINUATION = b"\xff\xff\xff\xff"
_END_OF_STREAM = 8
_PIECE, _LEAST = 2**24, 2**12


class Frame(NamedTuple):
    start: int
    end: int
    seq: int
    rows: int
    first_step: int
    last_step: int


class Sealed(NamedTuple):
    """A frame about to be written."""

    data: bytes
    rows: int
    first_step: int
    last_step: int


@cache
def schema(name: str) -> Any:
    """The columns of ``spans`` or ``samples``."""
    import pyarrow as pa

    types = {
        "int8": pa.int8(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "string": pa.string(),
        "histogram": pa.list_(pa.uint16(), HISTOGRAM_BINS),
    }
    columns = [column.split() for column in _COLUMNS[name].split(",")]
    return pa.schema(
        [pa.field(column, types[kind.rstrip("?")], nullable=kind.endswith("?")) for column, kind in columns]
    )


_COLUMNS = {
    "spans": (
        "id int64, parent int64, brick int32, phase int8, step int64, micro int32, start_ns int64, "
        "end_ns int64, device_ns int64?, stream int64?, attributes string?"
    ),
    "samples": (
        "time_ns int64, step int64, micro int32, brick int32, tensor int32, role int8, numel int64, "
        "nan int64?, inf int64?, absmax float64?, l2 float64?, mean float64?, zero_fraction float64?, "
        "ratio float64?, checksum int64?, scale float64?, histogram histogram?"
    ),
}
STEP_COLUMN = {"spans": 4, "samples": 1}


@cache
def schema_frame(name: str) -> bytes:
    """The message that opens a file."""
    import pyarrow as pa

    bare = schema(name).with_metadata({_KEY: _BLANK}).serialize()
    return _sealed(bytearray(pa.py_buffer(bare)), 0, 0, 0, 0)


def batch_frame(name: str, rows: Sequence[tuple[Any, ...]], seq: int) -> Sealed:
    """The message that holds ``rows``. Raises what pyarrow raises when a value does not fit its column."""
    columns = list(zip(*rows, strict=True))
    fields = schema(name)
    if len(columns) != len(fields):
        raise ValueError(f"a row of {name} has {len(fields)} columns, not {len(columns)}")
    steps = columns[STEP_COLUMN[name]]
    arrays = [column(values, field) for values, field in zip(columns, fields, strict=True)]
    return _framed(fields, arrays, seq, len(rows), min(steps), max(steps))


def sheets_frame(name: str, sheets: Sequence[Sheet], seq: int) -> Sealed:
    """The message that holds ``sheets``; see ``sheets.together`` for which may stand in one."""
    fields = schema(name)
    steps = [sheet.step for sheet in sheets]
    return _framed(fields, columns_of(sheets, fields, _nulls), seq, sum(map(len, sheets)), min(steps), max(steps))


def rehearse() -> None:
    """Makes a frame of each sort that nobody gets: what is loaded when one is first made, is there from then on."""
    import numpy as np

    for name in _COLUMNS:
        schema_frame(name)
        batch_frame(name, [tuple(None if field.nullable else 0 for field in schema(name))], 0)
    nobody = np.zeros(1, np.int32)
    sheets_frame("samples", [Sheet(0, 0, 0, 0, None, nobody, nobody, np.zeros((1, len(TABLE))))], 0)


def _framed(fields: Any, arrays: list[Any], seq: int, rows: int, first: int, last: int) -> Sealed:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, fields) as writer:
        batch = pa.RecordBatch.from_arrays(arrays, schema=fields)
        writer.write_batch(batch, custom_metadata={_KEY: _BLANK})
    stream = memoryview(sink.getvalue())
    opening = 8 + int.from_bytes(stream[4:8], "little")  # the schema, which the file has already
    message = bytearray(stream[opening:-_END_OF_STREAM])
    return Sealed(_sealed(message, seq, rows, first, last), rows, first, last)


def frames(data: bytes | bytearray, at: int = 0) -> Iterator[Frame]:
    """The frames of a file that are exactly what was written, in order."""
    view = memoryview(data)
    found = data.find(_MARK, at)
    while found >= 0:
        frame = _frame_at(data, view, found, at)
        if frame:
            yield frame
            at = frame.end
        found = data.find(_MARK, frame.end if frame else found + 1)


def read_table(path: Path, columns: Any, piece: int = _PIECE) -> tuple[Any, Damage]:
    """Every whole row of a file as a table with the schema ``columns``, and what was lost.

    Read ``piece`` by piece, each made small before the next is read: columns that nobody filled take no memory.
    """
    path = Path(path)
    reader = _Reader(columns)
    try:
        with path.open("rb", buffering=0) as stream:
            while reader.take(stream, piece):
                pass
    except FileNotFoundError:
        return empty(columns), Damage(shown(path))
    return reader.table, Damage(shown(path), reader.lost, reader.records)


class _Reader:
    """The frames of a file, piece by piece. A piece lies behind the file's opening, so that it is a stream itself."""

    def __init__(self, columns: Any) -> None:
        self.lost = 0
        self.records: int | None = 0
        """Rows that were lost; None where nobody can tell."""
        self._columns = columns
        self._opening = b""
        self._rest: bytes | bytearray = b""
        self._tables: list[Any] = []

    def take(self, stream: Any, size: int) -> bool:
        """The frames of the next piece; whether there was one."""
        ahead = os.fstat(stream.fileno()).st_size - stream.tell()
        before, filled = len(self._opening), len(self._opening) + len(self._rest)
        data = bytearray(filled + min(size, max(ahead, _LEAST)))
        data[:before] = self._opening
        data[before:filled] = self._rest
        got = stream.readinto(memoryview(data)[filled:])
        if not got:
            self._gap(self._rest, 0, len(self._rest))
            return False
        del data[filled + got :]
        self._frames(data, before)
        return True

    def _frames(self, data: bytearray, at: int) -> None:
        whole: list[Frame] = []
        for frame in frames(data, at):
            self._gap(data, at, frame.start)
            at = frame.end
            if frame.seq == 0:
                self._opening = self._opening or bytes(data[frame.start : frame.end])
            else:
                whole.append(frame)
        self._rest = data[at:]  # a frame whose end is yet to come, or damage
        if whole:
            self._decode(data, whole)

    @property
    def table(self) -> Any:
        import pyarrow as pa

        return pa.concat_tables(self._tables) if self._tables else empty(self._columns)

    def _gap(self, data: bytes | bytearray, start: int, end: int) -> None:
        """Counts what is damaged: its rows by the headers that can still be read in it."""
        if start >= end:
            return
        headers = list(_TEXT.finditer(data, start, end))
        self.lost += end - start
        rows = sum(int(header[5]) for header in headers) if headers else None
        self._lose(rows)

    def _lose(self, rows: int | None) -> None:
        self.records = None if self.records is None or rows is None else self.records + rows

    def _decode(self, data: bytearray, whole: list[Frame]) -> None:
        table, unreadable = _decoded(data, self._opening, whole, self._columns)
        for frame in unreadable:
            self.lost += frame.end - frame.start
            self._lose(frame.rows)
        if table.num_rows:
            self._tables.append(_compact(table))


def _compact(table: Any) -> Any:
    """``table`` on its own, without the bytes it was read from; a column of nothing shares one buffer."""
    import pyarrow as pa

    joined = [
        _nothing(column.type, len(column))
        if column.null_count == len(column)
        else pa.chunked_array([column.combine_chunks()])
        for column in table.columns
    ]
    return pa.Table.from_arrays(joined, schema=table.schema)


@cache
def _nulls(kind: Any) -> Any:
    import pyarrow as pa

    return pa.nulls(MOST_ROWS, type=kind)


def _nothing(kind: Any, rows: int) -> Any:
    import pyarrow as pa

    full, rest = divmod(rows, MOST_ROWS)
    nothing = _nulls(kind)
    return pa.chunked_array([*[nothing] * full, *([nothing.slice(0, rest)] if rest else [])], type=kind)


def empty(columns: Any) -> Any:
    """A table with no rows; ``Schema.empty_table`` would import pandas for it."""
    import pyarrow as pa

    return pa.Table.from_batches([], columns)


def parse_frames(data: bytes, columns: Any, after: int = 0) -> tuple[Any, int, int]:
    """The rows of whole frames in ``data`` whose number is above ``after``; the last number, and where they end."""
    new, end = [], 0
    for frame in frames(data):
        end = frame.end
        if frame.seq > after:
            new.append(frame)
    if not new:
        return None, after, end
    return _decoded(data, None, new, columns)[0], max(frame.seq for frame in new), end


def _sealed(message: bytearray, seq: int, rows: int, first: int, last: int) -> bytes:
    at = message.find(_MARK)
    text = (
        f"BPF1 off={at:08d} len={len(message):08d} seq={seq:012d} crc={0:08x} "
        f"rows={rows:08d} steps={first:+020d}:{last:+020d}"
    ).encode("ascii")
    if len(text) != len(_BLANK):
        raise ValueError("a frame is too long for its own header")
    message[at : at + len(text)] = text
    message[at + _CRC_AT : at + _CRC_AT + 8] = b"%08x" % crc32(message)
    return bytes(message)


def _frame_at(data: bytes | bytearray | mmap, view: memoryview, at: int, floor: int) -> Frame | None:
    """The frame whose text stands at ``at``, if it is whole and starts no earlier than ``floor``."""
    text = _TEXT.match(data, at)
    if not text:
        return None
    start = at - int(text[1])
    end = start + int(text[2])
    digits = at + _CRC_AT
    if start < floor or end > len(data) or end < digits + 8 or data[start : start + 4] != _CONTINUATION:
        return None
    checksum = crc32(view[digits + 8 : end], crc32(_ZEROS, crc32(view[start:digits])))
    if checksum != int(text[4], 16):
        return None
    return Frame(start, end, int(text[3]), int(text[5]), int(text[6]), int(text[7]))


def _decoded(
    data: bytes | bytearray, opening: bytes | None, whole: list[Frame], columns: Any
) -> tuple[Any, list[Frame]]:
    import pyarrow as pa

    head = opening or _serialised(columns)
    view = memoryview(data)
    contiguous = all(a.end == b.start for a, b in pairwise(whole))
    if opening and contiguous and whole and whole[0].start == len(opening) and view[: len(opening)] == opening:
        stream = view[: whole[-1].end]
    else:
        stream = memoryview(b"".join([head, *(view[frame.start : frame.end] for frame in whole)]))
    try:
        return _aligned(pa.ipc.open_stream(stream).read_all(), columns), []
    except (pa.ArrowException, ValueError, OSError):
        return _one_by_one(view, head, whole, columns)


def _one_by_one(view: memoryview, head: bytes, whole: list[Frame], columns: Any) -> tuple[Any, list[Frame]]:
    """The slow way: for frames that carry the right checksum and still do not decode."""
    import pyarrow as pa

    tables, unreadable = [empty(columns)], []
    for frame in whole:
        try:
            stream = head + bytes(view[frame.start : frame.end])
            tables.append(_aligned(pa.ipc.open_stream(stream).read_all(), columns))
        except (pa.ArrowException, ValueError, OSError):
            unreadable.append(frame)
    return pa.concat_tables(tables), unreadable


def _serialised(columns: Any) -> bytes:
    return bytes(columns.serialize())


def _aligned(table: Any, columns: Any) -> Any:
    """``table`` with exactly ``columns``: a newer or older file may have others."""
    import pyarrow as pa

    if table.schema.equals(columns):
        return table.replace_schema_metadata(None)
    present = set(table.column_names)
    arrays = [
        table.column(field.name).cast(field.type)
        if field.name in present
        else pa.nulls(table.num_rows, type=field.type)
        for field in columns
    ]
    return pa.table(arrays, names=columns.names)
