"""What Ultralytics (YOLO) prints while it trains: a heading and a row for each epoch, then those of its evaluation.

          Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size
           1/20      10.1G      1.777      2.573      1.302         79        640: 100%|####| 298/298 [08:35<00:00]
                     Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|####| 38/38
                       all       1189       4779       0.34     0.0303     0.0157    0.00773

Enters: such text, with the bars drawn over and over or once. Leaves: a row an epoch, as it stood when the epoch ended,
and its evaluation as another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from brickprof.logs.reading import tokens
from brickprof.logs.reading.incidents import Watch
from brickprof.logs.reading.model import Head, Item, Skipped, block
from brickprof.logs.reading.numbers import number
from brickprof.logs.reading.source import Source
from brickprof.text import clean

_HEADING = re.compile(r"^\s*Epoch\s+(GPU_mem|gpu_mem)\s+(\S.*?)\s*$")
_ROW = re.compile(r"^\s*(\d+)/(\d+)\s+([\d.]+[GMK]?)\s+([^:]*?)\s*(?::|$)")
_ALL = re.compile(r"^\s*all\s+(\d+)\s+(\d+)\s+(\S.*?)\s*$")
_COUNTS = frozenset({"Instances", "Size", "labels", "img_size"})
_MEASURES = ("metrics/precision", "metrics/recall", "metrics/mAP50", "metrics/mAP50-95")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MOST_EXAMPLES = 3
_LONGEST_LINE = 64 << 10


class UltralyticsText:
    name = "ultralytics_text"
    title = "Ultralytics stdout"
    roles = {"GPU_mem": "memory", "epoch": "step"}  # noqa: RUF012

    def sniff(self, head: Head) -> float:
        lines = [_COLOURS.sub("", line) for line in head.lines]
        for place, line in enumerate(lines):
            if _HEADING.match(line) and any(_ROW.match(below) for below in lines[place + 1 : place + 4]):
                return 0.95
        return 0.0

    def read(self, source: Source) -> Iterator[Item]:
        watch, telling, line = Watch(), _Telling(), source.first_line
        for chunk in source.chunks():
            found = tokens.cut(chunk, line)
            left: list[int] = []
            for place in range(len(found)):
                text = _COLOURS.sub("", found.text(place)[:_LONGEST_LINE].decode("utf-8", "replace"))
                told = telling.line(int(found.lines[place]), text)
                yield from told or ()
                if told is None:
                    left.append(place)
            yield from watch.take(found, np.array(left, dtype=np.int64))
            line += chunk.count(b"\n")
        yield from telling.end()
        yield from watch.end()


class _Telling:
    """What was said so far: the names above the numbers, and the row of an epoch that may be drawn again."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._row: tuple[int, dict[str, float]] | None = None
        self._passed: list[tuple[int, str]] = []
        self._count = 0

    def line(self, at: int, text: str) -> list[Item] | None:
        """What a line says; None where that is nothing."""
        if not text.strip() or text.strip().startswith("Class"):
            return []
        if (heading := _HEADING.match(text)) is not None:
            self._names = heading.group(2).split()
            return []
        if (found := _row(text, self._names)) is not None:
            before, self._row = self._row, (at, found)
            ended = before is not None and before[1]["epoch"] != found["epoch"]
            return [_block(*before, kind="train")] if before is not None and ended else []
        if (measured := _evaluated(text)) is not None and self._row is not None:
            return [_block(at, {"epoch": self._row[1]["epoch"], **measured}, kind="eval")]
        self._count += 1
        if len(self._passed) < _MOST_EXAMPLES:
            self._passed.append((at, clean(text, limit=200)))
        return None

    def end(self) -> Iterator[Item]:
        if self._row is not None:
            yield _block(*self._row, kind="train")
        if self._count:
            yield Skipped(self._count, tuple(self._passed))


def _row(line: str, names: list[str]) -> dict[str, float] | None:
    found = _ROW.match(line)
    if found is None or not names:
        return None
    cells = [number(cell) for cell in found.group(4).split()]
    if not cells or None in cells[: len(names)] or len(cells) < min(len(names), 2):
        return None
    told = {f"train/{name}" if name not in _COUNTS else name: cell for name, cell in zip(names, cells, strict=False)}
    kept = {name: float(cell) for name, cell in told.items() if cell is not None and name not in _COUNTS}
    memory = number(found.group(3) + "B" if found.group(3)[-1].isalpha() else found.group(3))
    return {"epoch": float(found.group(1)), "total_epochs": float(found.group(2)), "GPU_mem": memory or 0.0, **kept}


def _evaluated(line: str) -> dict[str, float] | None:
    found = _ALL.match(line)
    if found is None:
        return None
    cells = [number(cell) for cell in found.group(3).split()]
    if len(cells) < len(_MEASURES) or None in cells:
        return None
    return {name: float(cell) for name, cell in zip(_MEASURES, cells, strict=False) if cell is not None}


def _block(line: int, values: dict[str, float], *, kind: str) -> Item:
    return block([line], {name: [value] for name, value in values.items()}, kind=kind)


READER = UltralyticsText()
