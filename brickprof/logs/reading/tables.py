"""Tables in text: comma, semicolon or tab between cells, names on top.

Enters: a log whose lines are rows. Leaves: blocks of the rows that hold the same columns: a cell that is empty is
missing, one that says nan is a NaN. Repeated headers (a restart appended to the file), remarks, blank lines and rows
that are cut off are recognised; a column of words is no number and left out.

The text goes through Arrow in chunks, so that memory is bounded; lines that Arrow would stumble over are taken one by
one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

import numpy as np

from brickprof.logs.reading import rows
from brickprof.logs.reading.model import Floats, Head, Item, Whole
from brickprof.logs.reading.names import role
from brickprof.logs.reading.numbers import number
from brickprof.logs.reading.rows import Mask
from brickprof.logs.reading.source import Source
from brickprof.run.columns import numbers, present

MISSING = ("", "NA", "N/A", "n/a", "na", "null", "NULL", "None", "none", "-", "--", "<NA>", "#N/A")
"""Cells that hold nothing. Keras writes NA where an epoch was not finished."""
_SEPARATORS = ",;\t|"
_MOST_COLUMNS = 2_000
_LONGEST_NAME = 200
_LOOKED_AT = 40
_MOSTLY = 0.6
_DECIMAL_COMMA = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+),\d+(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+(?:,\d*)?")
_LEAST_BARE = 5

Rename = Callable[[Sequence[str]], Sequence[str]]
"""What a format makes of the names on top; an empty name leaves its column out."""


@dataclass(frozen=True, slots=True)
class Header:
    names: tuple[str, ...]
    separator: str
    line: int
    """In which line it stands, from 1; 0 where there is none and the columns are numbered."""
    decimal: str = "."


def header_of(head: Head) -> Header | None:
    """The names on top of a table; None of what is no table."""
    text = head.start.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    lines = text.replace("\r\n", "\n").split("\n")
    whole = lines[:-1] if len(lines) > 1 and len(head.start) >= 60_000 else lines
    skipped = sum(1 for _ in takewhile(_says_nothing, whole))
    top, below = whole[skipped : skipped + 1], [line for line in whole[skipped + 1 :] if not _says_nothing(line)]
    if not top or len(top[0]) > 1 << 20 or "\0" in top[0]:
        return None
    found = [header for mark in _SEPARATORS if (header := _split_by(mark, top[0], below[:_LOOKED_AT], skipped + 1))]
    return max(found, key=lambda header: len(header.names), default=None)


def _says_nothing(line: str) -> bool:
    """A blank line, a remark, or the hint with which some programs begin a table."""
    return not line.strip() or line.lstrip().startswith("#") or line.startswith("sep=")


def _split_by(separator: str, top: str, below: list[str], line: int) -> Header | None:
    names = [name.strip() for name in _cells(top, separator)]
    told = [name for name in names if name]
    if len(names) < 2 or len(names) > _MOST_COLUMNS or len(told) < len(names) - 1:
        return None
    if any(len(name) > _LONGEST_NAME or ": " in name or "{" in name for name in names):
        return None
    cells = [_cells(each, separator) for each in below]
    if sum(len(each) == len(names) for each in cells) < _MOSTLY * len(cells) - 1:
        return None
    if sum(_numeric(name, ".") for name in told) > len(told) / 2:
        return None
    full = [each for each in cells if len(each) == len(names)]
    decimal = _decimal(separator, [cell.strip() for each in full for cell in each])
    if full and not any(_numeric(cell, decimal) for each in full for cell in each):
        return None
    for place, name in enumerate(names):  # ``lr=0.1`` may be part of a name; under ``lr=0.1`` stand no numbers
        held = [each[place].strip() for each in full if each[place].strip() not in MISSING]
        if "=" in name and (not held or 2 * sum(_numeric(cell, decimal) for cell in held) < len(held)):
            return None
    return Header(tuple(_distinct(names)), separator, line, decimal)


def _decimal(separator: str, cells: Sequence[str]) -> str:
    """What stands before the fraction: a comma, where no comma parts the cells and numbers are written so."""
    if separator == ",":
        return "."
    with_comma = [cell for cell in cells if _DECIMAL_COMMA.fullmatch(cell)]
    surely = with_comma if separator == ";" else [cell for cell in with_comma if not _THOUSANDS.fullmatch(cell)]
    return "," if surely else "."


def bare(head: Head) -> Header | None:
    """A table whose columns have no names: one column of numbers, with or without a word on top; what pandas makes of a
    list, with its numbers of rows before it (``,0``); or numbers behind their steps. Columns without a name are called
    by their number."""
    text = head.start.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    lines = text.replace("\r\n", "\n").split("\n")
    whole = [line.strip() for line in (lines[:-1] if len(head.start) >= 60_000 else lines)]
    told = [line for line in whole if line]
    if len(told) <= _LEAST_BARE:
        return None
    top = told[0].split(",")
    numbered = len(top) > 1 and not top[0] and top[1:] == [str(place) for place in range(len(top) - 1)]
    below = [line.split(",") for line in told[1:]]
    if not all(len(cells) == len(top) and all(_held(cell) for cell in cells) for cells in below):
        return None
    line = 1 + whole.index(told[0])
    if numbered:
        return Header(("", *top[1:]), ",", line)
    if len(top) == 2 and _counts([cells[0] for cells in [top, *below]]) and _held(top[1]):
        return Header(("step", "0"), ",", 0)
    if len(top) > 1 or len(told[0]) > _LONGEST_NAME:
        return None
    if told[0] == "0" and any("." in cells[0] for cells in below):
        return Header(("0",), ",", line)
    if _numeric(told[0], "."):
        return Header(("0",), ",", 0)
    return Header((told[0].strip('"'),), ",", line) if role(told[0]) != "other" else None


def _counts(cells: Sequence[str]) -> bool:
    """Whether these are whole numbers, one after another."""
    if not all(cell.strip().isdigit() and len(cell) < 16 for cell in cells):
        return False
    steps = [int(cell) for cell in cells]
    return all(after > before for before, after in pairwise(steps))


def _held(cell: str) -> bool:
    return cell.strip() in MISSING or _numeric(cell, ".")


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        return []


def _numeric(cell: str, decimal: str) -> bool:
    return _number(cell, decimal) is not None


def _number(cell: str, decimal: str) -> float | None:
    cell = cell.strip()
    if len(cell) >= 64:
        return None
    if decimal == ",":
        cell = (cell.replace(".", "") if _GROUPED.fullmatch(cell) else cell).replace(",", ".")
    return number(cell)


def _distinct(names: Sequence[str]) -> Iterator[str]:
    """Names that are all different: the second ``loss`` is ``loss.1``; what has no name is left out."""
    seen: dict[str, int] = {}
    for name in names:
        again = seen[name] = seen.get(name, -1) + 1
        yield f"{name}.{again}" if again and name else name


def read(
    source: Source, rename: Rename | None = None, *, kind: str = "", header: Header | None = None
) -> Iterator[Item]:
    """The rows of a table; ``rename`` gives each column its name in the log, or none."""
    header = header or header_of(source.head())
    if header is None:
        raise ValueError("there is no line with the names of columns")
    reader = _Reader(header, rename or _as_they_are, kind)
    line = source.first_line
    for chunk in source.chunks():
        if line == 1:
            chunk = (chunk.split(b"\n", header.line)[header.line :] or [b""])[0]
            line += header.line
        if chunk:
            yield from reader.chunk(chunk, line)
            line += chunk.count(b"\n")


def _as_they_are(names: Sequence[str]) -> Sequence[str]:
    return names


class _Reader:
    def __init__(self, header: Header, rename: Rename, kind: str) -> None:
        self._separator, self._decimal = header.separator, header.decimal
        self._rename = rename
        self._kind = kind
        self._words: set[str] = set()
        """Columns that have held words."""
        self._above: list[str] = []
        """Last cells of rows that came before."""
        self._begin(header.names)

    def _begin(self, names: Sequence[str]) -> None:
        """These names are on top of what follows."""
        self._written = list(names)
        self._names = list(self._rename(names))

    def chunk(self, chunk: bytes, line: int) -> Iterator[Item]:
        table = self._at_once(chunk) if chunk.endswith(b"\n") else None
        if table is None:
            yield from self._one_by_one(chunk, line)
            return
        ends = chunk[-_LOOKED_AT * 100 :].decode("utf-8", "replace").split("\n")[1:-1]
        self._above = [end.rpartition(self._separator)[2].strip('"\r ') for end in ends]
        lines = np.arange(line, line + table.num_rows, dtype=np.int64)
        yield from self._blocks(lines, table)

    def _at_once(self, chunk: bytes) -> Any:
        """All rows through Arrow; None where the rows are not plainly one a line."""
        import pyarrow as pa
        from pyarrow import csv as tabular

        names = [f"{place}" for place in range(len(self._names))]
        types = {
            place: pa.string() if name in self._words else pa.float64()
            for place, name in zip(names, self._names, strict=True)
        }
        for _ in range(2):
            try:
                table = tabular.read_csv(
                    pa.BufferReader(chunk),
                    tabular.ReadOptions(use_threads=False, block_size=len(chunk) + 1, column_names=names),
                    tabular.ParseOptions(delimiter=self._separator, ignore_empty_lines=False),
                    tabular.ConvertOptions(
                        column_types=types, null_values=list(MISSING), strings_can_be_null=True,
                        decimal_point=self._decimal,
                    ),
                )  # fmt: skip
            except pa.ArrowInvalid:
                types = dict.fromkeys(names, pa.string())
                continue
            rows_ = np.count_nonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n"))
            return table if table.num_rows == rows_ and not self._odd(table) else None
        return None

    def _odd(self, table: Any) -> bool:
        """Whether a header or a remark is among the rows, or might be: its first cell tells."""
        import pyarrow as pa
        import pyarrow.compute as pc

        first = table.column(0)
        if not pa.types.is_string(first.type):
            return False
        plain, head = pc.utf8_trim_whitespace(first), self._written[0]
        if head:
            headed = pc.and_(pc.starts_with(plain, head), pc.ends_with(plain, head))
        else:
            headed = pc.match_substring_regex(plain, "^$")
        return bool(pc.any(pc.or_(pc.starts_with(first, "#"), headed)).as_py())

    def _one_by_one(self, chunk: bytes, line: int) -> Iterator[Item]:
        text = chunk.decode("utf-8", "replace")
        lines = text.split("\n")[: -1 if text.endswith("\n") else None]
        where: list[int] = []
        which: list[list[str]] = []
        unread: list[tuple[int, str]] = []
        for place, each in enumerate(lines):
            if _says_nothing(each):
                continue
            cells = _cells(each.rstrip("\r"), self._separator)
            if self._is_header(cells):
                yield from self._rows(where, which)
                where, which = [], []
                self._begin(list(_distinct([cell.strip() for cell in cells])))
            elif len(cells) != len(self._names):
                unread.append((line + place, each))
            else:
                where.append(line + place)
                which.append(cells)
        if where and not text.endswith("\n") and where[-1] == line + len(lines) - 1:
            self._drop_cut_cell(which)
        yield from self._rows(where, which)
        yield from rows.skipped(unread)

    def _rows(self, where: list[int], which: list[list[str]]) -> Iterator[Item]:
        columns = {
            name: self._column([cells[place] for cells in which], name)
            for place, name in enumerate(self._names)
            if name
        }
        marker = self._marker()
        kinds = None if marker is None else [rows.kind_of(cells[marker][:40]) for cells in which]
        yield from self._by_kind(np.array(where, dtype=np.int64), columns, kinds)

    def _marker(self) -> int | None:
        """Which column tells training from evaluation."""
        return next((place for place, name in enumerate(self._names) if name.lower() in rows.MARKERS), None)

    def _by_kind(
        self, lines: Whole, columns: dict[str, tuple[Floats, Mask]], kinds: list[str] | None
    ) -> Iterator[Item]:
        told = np.array(kinds or [""] * len(lines), dtype=object)
        for kind in dict.fromkeys(told):
            chosen = np.flatnonzero(told == kind)
            held = {name: (values[chosen], mask[chosen]) for name, (values, mask) in columns.items()}
            there = {name: column for name, column in held.items() if column[1].any()}
            yield from rows.masked(lines[chosen], there, kind or self._kind)

    def _is_header(self, cells: list[str]) -> bool:
        """Names again, perhaps others: a run that was started again has written its own."""
        names = [cell.strip() for cell in cells]
        known = len(set(names) & set(self._written))
        return known > 1 and 2 * known >= len(names) and not any(_numeric(name, self._decimal) for name in names)

    def _drop_cut_cell(self, which: list[list[str]]) -> None:
        """A last row without an end of line may end within a number: one shorter than all above it is not told."""
        last = which[-1][-1].strip()
        above = [cell for cell in (*self._above, *(cells[-1].strip() for cells in which[:-1])) if cell]
        if last and above and len(last) < min(map(len, above)) and last.lower() not in ("nan", "inf", "-inf"):
            which[-1][-1] = ""

    def _column(self, cells: list[str], name: str) -> tuple[Floats, Mask]:
        found = [None if cell.strip() in MISSING else _number(cell, self._decimal) for cell in cells]
        if cells and not any(one is not None for one in found):
            self._words.add(name)
        mask = np.array([one is not None for one in found], dtype=bool)
        return np.array([np.nan if one is None else one for one in found], dtype=np.float64), mask

    def _blocks(self, lines: Any, table: Any) -> Iterator[Item]:
        import pyarrow as pa

        columns: dict[str, tuple[Floats, Mask]] = {}
        for place, name in enumerate(self._names):
            if not name:
                continue
            held = table.column(place).combine_chunks()
            if pa.types.is_string(held.type):
                columns[name] = self._text_column(held, name)
            else:
                columns[name] = numbers(held), present(held)
        marker, kinds = self._marker(), None
        if marker is not None and pa.types.is_string(table.column(marker).type):
            kinds = [rows.kind_of((cell or "")[:40]) for cell in table.column(marker).to_pylist()]
        yield from self._by_kind(lines, columns, kinds)

    def _text_column(self, held: Any, name: str) -> tuple[Floats, Mask]:
        """Numbers of a column that holds other things too."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._decimal == ".":
            try:
                cast = pc.utf8_trim_whitespace(held).cast(pa.float64())
                return numbers(cast), present(cast)
            except pa.ArrowInvalid:
                pass
        return self._column([cell or "" for cell in held.to_pylist()], name)
