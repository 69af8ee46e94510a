"""JSON that is one value: an array of objects, an object that holds some, or lists of numbers side by side.

Enters: ``[{"epoch": 1, "loss": 2.1}, ...]``, ``{"history": [{...}, ...], "lr": 0.1}``, or a history as Keras keeps it,
``{"loss": [2.1, 1.9], "val_loss": [2.2, 2.1]}``; TensorBoard's export of one number is ``[[time, step, value], ...]``.
Leaves: a row for each object or for each place of the lists; what else the object holds are settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brickprof.logs.reading import rows, settings
from brickprof.logs.reading.model import Fact, Head, Item, block
from brickprof.logs.reading.objects import Walk, numeric
from brickprof.logs.reading.records import row_of
from brickprof.logs.reading.source import Source

_OBJECTS = re.compile(rb'\[\s*\{\s*"')
_NUMBERS = re.compile(rb'"\s*:\s*\[\s*(?:[-+\d."NI][^\[\]{}]*[,\]]|\[)')
_TRIPLE = re.compile(rb"\[\s*\[\s*\d{9,}[.\d]*\s*,\s*\d+\s*,")
_OF_TENSORBOARD = ("wall_time", "step")
_MOST_LISTS = 2_000
_TAG = re.compile(r".*?tag-(.+?)(?:\.json|\.csv)?$")


class JsonList:
    name = "json"
    title = "JSON: a list of objects, or lists of numbers"

    def sniff(self, head: Head) -> float:
        start = head.start.lstrip(b"\xef\xbb\xbf \t\r\n")
        if start.startswith(b"["):
            return 0.75 if _OBJECTS.match(start) or _TRIPLE.match(start) else 0.0
        if not start.startswith(b"{"):
            return 0.0
        if _OBJECTS.search(start) or _NUMBERS.search(start):
            return 0.5 if _one_object(head.start) else 0.2
        return 0.0

    def read(self, source: Source) -> Iterator[Item]:
        text = source.whole().decode("utf-8-sig", "replace")
        held = _Held()
        try:
            for entry in Walk(text):
                if entry.place is None:
                    held.single(entry.key, entry.value)
                else:
                    held.listed(entry.key, entry.value, entry.line)
        except ValueError as broken:
            source.damage.append(str(broken))
        yield from held.items(_tag(source.name))


def _one_object(start: bytes) -> bool:
    """Whether this is no object a line: its first line is not whole, or it is the only one."""
    first, _, rest = start.strip().partition(b"\n")
    return not rest.strip() or not first.rstrip().endswith(b"}")


def _tag(name: str) -> str:
    """What TensorBoard calls the number that it wrote to a file of this name."""
    found = _TAG.fullmatch(name)
    return found[1] if found else "value"


@dataclass(slots=True)
class _Objects:
    lines: list[int] = field(default_factory=list)
    found: list[dict[str, Any]] = field(default_factory=list)


class _Held:
    """What one JSON value holds."""

    def __init__(self) -> None:
        self._objects: dict[str, _Objects] = {}
        self._numbers: dict[str, list[float | None]] = {}
        self._triples: list[tuple[float, float, float]] = []
        self._states: dict[str, Any] = {}

    def single(self, key: str, value: Any) -> None:
        """A value that stands alone; an object in the object may hold lists, as a history does."""
        inner = value if isinstance(value, dict) else {}
        lists = {name: held for name, held in inner.items() if isinstance(held, list)}
        for name, held in lists.items():
            for place, one in enumerate(held):
                self._put(f"{key}/{name}", one, place + 1)
        if not isinstance(value, dict):
            self._states[key] = value
        elif len(lists) < len(inner):
            self._states[key] = {name: held for name, held in inner.items() if name not in lists}

    def listed(self, key: str, value: Any, line: int) -> None:
        self._put(key, value, line)

    def _put(self, key: str, value: Any, line: int) -> None:
        if len(self._objects) + len(self._numbers) > _MOST_LISTS:
            return
        if isinstance(value, dict):
            objects = self._objects.setdefault(key, _Objects())
            objects.lines.append(line)
            objects.found.append(value)
        elif isinstance(value, list) and len(value) == 3 and not key:
            triple = [numeric("value", one) for one in value]
            if None not in triple:
                self._triples.append(tuple(triple))  # type: ignore[arg-type]
        else:
            self._numbers.setdefault(key, []).append(numeric(key, value))

    def items(self, tag: str) -> Iterator[Item]:
        if self._states:
            yield Fact("setting", 1, {"values": settings.flat(self._states)})
        several = len(self._objects) > 1
        for key, objects in self._objects.items():
            yield from _rows(objects, key if several else "")
        yield from self._columns()
        if self._triples:
            columns = zip((*_OF_TENSORBOARD, tag), np.array(self._triples).T, strict=True)
            yield block(np.arange(1, len(self._triples) + 1), dict(columns))

    def _columns(self) -> Iterator[Item]:
        """Lists of numbers: those of one length are columns of one table."""
        together: dict[int, list[str]] = {}
        for key, held in self._numbers.items():
            if key and any(one is not None for one in held):
                together.setdefault(len(held), []).append(key)
        common = _common([key for keys in together.values() for key in keys])
        for length, keys in together.items():
            named = {key.removeprefix(common): self._numbers[key] for key in keys}
            table = [
                {name: one for name, column in named.items() if (one := column[place]) is not None}
                for place in range(length)
            ]
            yield from rows.blocks(range(1, length + 1), table, keys[0] if len(together) > 1 else "")


def _common(keys: list[str]) -> str:
    """What all names begin with, up to a ``/``: ``history/loss`` and ``history/val_loss`` are loss and val_loss."""
    heads = {key.rpartition("/")[0] for key in keys}
    return f"{heads.pop()}/" if len(heads) == 1 and "" not in heads else ""


def _rows(objects: _Objects, key: str) -> Iterator[Item]:
    kinds: dict[str, tuple[list[int], list[dict[str, float]]]] = {}
    own = rows.kind_of(key)
    for line, found in zip(objects.lines, objects.found, strict=True):
        numbers, _, kind = row_of(found)
        lines, which = kinds.setdefault(kind or own, ([], []))
        lines.append(line)
        which.append(
            {name if not key or rows.is_guide(name) else f"{key}/{name}": one for name, one in numbers.items()}
        )
    for kind, (lines, which) in kinds.items():
        yield from rows.blocks(lines, which, kind or key)


READER = JsonList()
