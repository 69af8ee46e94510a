"""What one record costs the training that emits it: `python benchmarks/journal.py`.

Enters: nothing. Leaves: microseconds a call of `event`, `span` and `sample`, and what they become on disk.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from brickprof.journal import Journal

LOSS = {"value": 3.214159, "micro": 0, "scale": 1.0, "dtype": "float32", "training": True}


def loss_event(journal: Journal, i: int) -> None:
    journal.event("loss", i, LOSS)


def nan_event(journal: Journal, i: int) -> None:
    journal.event("loss", i, LOSS | {"value": float("nan")})


def span(journal: Journal, i: int) -> None:
    journal.span((i, 0, 1, 2, i, 0, 1_000 * i, 1_000 * i + 500, None, None, None))


def sample(journal: Journal, i: int) -> None:
    journal.sample((1_000 * i, i, 0, 1, 1, 1, 4096, 0, 0, 1.5, 2.5, 0.1, 0.0, None, None, 1.0, None))


CALLS: dict[str, tuple[Callable[[Journal, int], None], str]] = {
    "event": (loss_event, "events.jsonl"),
    "event with a nan": (nan_event, "events.jsonl"),
    "span": (span, "spans.arrow"),
    "sample": (sample, "samples.arrow"),
}


def time_calls(call: Callable[[Journal, int], None], count: int, repeats: int, file: str) -> tuple[list[float], float]:
    """Microseconds a call, once per repeat, and bytes a record."""
    timings, size = [], 0.0
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            journal = Journal(Path(scratch))
            gc.collect()
            start = time.perf_counter_ns()
            for i in range(count):
                call(journal, i)
            timings.append((time.perf_counter_ns() - start) / 1e3 / count)
            journal.close()
            size = (Path(scratch) / file).stat().st_size / count
    return timings, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()

    table = Table("call", title="Cost of a record", title_justify="left")
    for heading in ("us a call", "best", "worst", "bytes on disk"):
        table.add_column(heading, justify="right")
    for name, (call, file) in CALLS.items():
        timings, size = time_calls(call, args.count, args.repeats, file)
        cells = (statistics.median(timings), min(timings), max(timings))
        table.add_row(name, *(f"{cell:.2f}" for cell in cells), f"{size:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
