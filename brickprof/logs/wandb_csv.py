"""Tables as Weights & Biases exports them from a chart.

Enters: ``Step``, and for each run ``name - metric``, ``name - metric__MIN`` and ``name - metric__MAX``. Leaves: blocks
under the names of the metrics. Of several runs in one table the first keeps the plain names, the others theirs. The
table of runs, which has a row a run and no history of any, is refused: its rows are no steps of one training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from brickprof.errors import UnreadableInput
from brickprof.logs.reading import tables
from brickprof.logs.reading.model import Head, Item
from brickprof.logs.reading.source import Source
from brickprof.text import clean

_BOUNDS = ("__MIN", "__MAX")
_OF_RUNS = (frozenset({"Name", "State", "Created", "Runtime"}), frozenset({"_wandb", "_runtime"}))
"""Columns that only a table of runs has: as the page exports it, and as the API gives it."""


class WandbCsv:
    name = "wandb-csv"
    title = "Weights & Biases, exported CSV"

    def sniff(self, head: Head) -> float:
        header = tables.header_of(head)
        if header is None:
            return 0.0
        if _of_runs(header.names):
            return 0.95
        bounds = sum(name.endswith(_BOUNDS) for name in header.names)
        charted = sum(" - " in name for name in header.names)
        return 0.95 if bounds and charted else 0.75 if charted and header.names[0] == "Step" else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        header = tables.header_of(source.head())
        if header is not None and _of_runs(header.names):
            raise UnreadableInput(
                f"{clean(source.path)} is a table of runs, a row a run: it tells no steps.",
                "Export a chart of the loss, or the history of a run.",
            )
        yield from tables.read(source, metrics)


def _of_runs(names: Sequence[str]) -> bool:
    return any(told <= frozenset(names) for told in _OF_RUNS)


def metrics(names: Sequence[str]) -> list[str]:
    """The names of the metrics; none of what a chart needs besides: bounds, and the step of each run once more."""
    runs = list(dict.fromkeys(name.rpartition(" - ")[0] for name in names if " - " in name))
    found = []
    for name in names:
        run, _, metric = name.rpartition(" - ")
        again = bool(run) and metric in ("_step", "_timestamp", "_runtime")
        if name.endswith(_BOUNDS) or again:
            found.append("")
        else:
            found.append(metric if not run or run == runs[0] else name)
    return found


READER = WandbCsv()
