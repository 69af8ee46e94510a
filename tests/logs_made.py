"""Small logs, and a reader of lines that knows one shape of line and nothing else."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from brickprof.logs.reading.model import Block, Fact, Head, Item, Skipped, block
from brickprof.logs.reading.source import Source

LINE = re.compile(rb"^(?:(eval|rank \d+) )?step (\S+) loss (\S+)(?: norm (\S+))?$")


class PlainReader:
    """``step 12 loss 3.25 norm 1.5``; before it ``eval`` or ``rank 3``. ``boom ...`` is an exception."""

    name, title = "plain", "A log of tests"
    by_lines = True

    def sniff(self, head: Head) -> float:
        return 0.9 if LINE.match(head.start.split(b"\n")[0]) else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        number = source.first_line
        for chunk in source.chunks():
            rows: dict[tuple[bytes, bool], list[tuple[int, float, float, float]]] = {}
            unread = []
            for line in chunk.split(b"\n")[: -1 if chunk.endswith(b"\n") else None]:
                found = LINE.match(line)
                if found:
                    values = [float(part or "nan") for part in found.groups()[1:]]
                    rows.setdefault((found[1] or b"", found[4] is not None), []).append((number, *values))
                elif line.startswith(b"boom"):
                    yield Fact("exception", number, {"type": "RuntimeError", "message": line[5:].decode()})
                elif line.strip():
                    unread.append((number, line.decode("utf-8", "replace")))
                number += 1
            for (kind, normed), found_rows in rows.items():
                yield self._block(kind.decode(), normed, found_rows)
            if unread:
                yield Skipped(len(unread), tuple(unread[:5]))

    def _block(self, kind: str, normed: bool, rows: list[tuple[int, float, float, float]]) -> Block:
        columns = list(zip(*rows, strict=True))
        values = {"step": columns[1], "loss": columns[2]} | ({"norm": columns[3]} if normed else {})
        rank = int(kind.split()[1]) if kind.startswith("rank") else None
        return block(columns[0], values, rank=rank, kind="" if rank is not None else kind)


def falling(step: int) -> float:
    """A loss that falls as losses do, with a little noise that is the same every time."""
    return 2.0 + 3.0 * math.exp(-step / 60) + 0.02 * math.sin(step * 12.9898)


def plain(count: int, start: int = 0, **changed: float) -> list[str]:
    """Lines of a healthy run; ``s120=...`` is another loss in step 120."""
    losses = {step: changed.get(f"s{step}", falling(step)) for step in range(start, start + count)}
    return [f"step {step} loss {loss:.6f} norm {1 + 0.1 * math.cos(step):.4f}" for step, loss in losses.items()]


def jsonl(path: Path, count: int = 200, start: int = 0, broken_at: int | None = None, **more: float) -> Path:
    """A JSONL log: healthy, or with a loss that is NaN from a step on."""
    lines = []
    for step in range(start, start + count):
        lost = broken_at is not None and step >= broken_at
        grown = 1.0 if broken_at is None else max(1.0, 1000.0 ** (1 - max(broken_at - step, 0) / 6))
        norm = float("nan") if lost else grown * (1 + 0.1 * math.cos(step))
        loss = float("nan") if lost else falling(step)
        lines.append(json.dumps({"step": step, "loss": loss, "grad_norm": norm, "lr": 1e-4, **more}))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def same(one, other) -> None:
    """Two logs that hold the same, to the last bit."""
    assert list(one.series) == list(other.series)
    for name, series in one.series.items():
        twin = other.series[name]
        for column in ("steps", "values", "lines", "attempts"):
            np.testing.assert_array_equal(getattr(series, column), getattr(twin, column), err_msg=f"{name} {column}")
        assert (series.count, series.role, series.rank, series.kind) == (twin.count, twin.role, twin.rank, twin.kind)
    for field in ("facts", "attempts", "rows", "unread", "examples", "steps_by", "repeated", "late", "damage"):
        assert getattr(one, field) == getattr(other, field), field
