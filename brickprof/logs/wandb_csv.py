"""Tables as Weights & Biases exports them from a chart.

Enters: ``Step``, and for each run ``name - metric``, ``name - metric__MIN`` and ``name - metric__MAX``. Leaves: blocks
under the names of the metrics. Of several runs in one table the first keeps the plain names, the others theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from brickprof.logs.reading import tables
from brickprof.logs.reading.model import Head, Item
from brickprof.logs.reading.source import Source

_BOUNDS = ("__MIN", "__MAX")


class WandbCsv:
    name = "wandb-csv"
    title = "Weights & Biases, exported CSV"

    def sniff(self, head: Head) -> float:
        header = tables.header_of(head)
        if header is None:
            return 0.0
        bounds = sum(name.endswith(_BOUNDS) for name in header.names)
        charted = sum(" - " in name for name in header.names)
        return 0.95 if bounds and charted else 0.75 if charted and header.names[0] == "Step" else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        yield from tables.read(source, metrics)


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
