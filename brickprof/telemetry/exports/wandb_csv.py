"""The numbers of a run as Weights & Biases exports them from a chart.

Enters: a run, or a log of any format. Leaves: a table with ``Step``, and for each rank and each number ``run - name``,
``run - name__MIN`` and ``run - name__MAX``: the mean of what was told in a step, the least and the most of it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from brickprof.errors import NothingToJudge
from brickprof.telemetry.curves import Curve, by_step
from brickprof.telemetry.exports.csv import harmless
from brickprof.telemetry.files import whole_text
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.run import Run

NAME, SUFFIX = "wandb-csv", ".wandb.csv"
TITLE = "loss, learning rate, norms, times and memory by step, as Weights & Biases exports a chart"


def write(run: Run, out: Path) -> Path:
    curves = _columns(run)
    if not curves:
        raise NothingToJudge("This run tells no number at any step, so there is nothing to put into a table.")
    with whole_text(out) as stream:
        table = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n")
        table.writerow(["Step", *(f"{name}{end}" for name in curves for end in ("", "__MIN", "__MAX"))])
        table.writerows(_rows(list(curves.values())))
    return out


def _columns(run: Run) -> dict[str, Curve]:
    """Each number of each rank under the name of its column."""
    whose = clean(run.meta.run_id, limit=80).replace(" - ", " ")
    several = sum(part.rank >= 0 for part in run.parts) > 1
    found: dict[str, Curve] = {}
    for part in sorted(run.parts, key=lambda part: (part.rank < 0, part.rank)):
        who = whose if part.rank >= 0 and not several else f"{whose} {_of(part.rank)}"
        for name, curve in by_step(part).items():
            found[harmless(f"{who} - {name}")] = curve
    return found


def _of(rank: int) -> str:
    return f"rank {rank}" if rank >= 0 else "launch"


def _rows(curves: list[Curve]) -> Iterator[list[str]]:
    import numpy as np

    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    columns = []
    for curve in curves:
        places = np.searchsorted(steps, curve.steps)
        for values in (curve.means, curve.lows, curve.highs):
            column = [""] * len(steps)
            for place, value in zip(places.tolist(), values.tolist(), strict=True):
                column[place] = _cell(value)
            columns.append(column)
    return (list(row) for row in zip(map(str, steps.tolist()), *columns, strict=True))


def _cell(value: float) -> str:
    """A number in as many digits as it has; what is not finite as JavaScript writes it."""
    if math.isfinite(value):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
