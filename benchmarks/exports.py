"""What an export takes: `python benchmarks/exports.py`, by default of 20,000 and of 80,000 spans.

Enters: numbers of spans. Leaves: CPU seconds, peak memory and size of what `brickprof export` writes, each format in a
process of its own. Memory that does not follow the number of spans is the point: what it grows by is the run itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "benchmarks"))

from brickprof.bricks import Brick, Kind  # noqa: E402
from brickprof.records import Event, RunMeta, Span  # noqa: E402
from brickprof.run import Run  # noqa: E402
from reports import cost  # noqa: E402

BLOCKS = 99
BEGAN = 1_763_170_000_000_000_000
STEP_NS = 10_000_000
FORMATS = ("perfetto", "speedscope", "tensorboard", "wandb-csv")


def made(spans: int) -> Run:
    """A run whose steps have a hundred bricks each, all timed on a device."""
    records: list[Span | Event] = [Event("run", 0, {"host": "box"}, 0, BEGAN)]
    for step in range(spans // (BLOCKS + 1)):
        start, first = BEGAN + step * STEP_NS, step * (BLOCKS + 1) + 1
        records.append(_span(Brick(Kind.STEP, "step"), step, "step", start, STEP_NS - 100_000, first, 0))
        for block in range(BLOCKS):
            at = start + block * 90_000
            records.append(
                _span(Brick(Kind.BLOCK, f"blocks.{block}"), step, "forward", at, 80_000, first + block + 1, first)
            )
        records.append(Event("loss", step, {"value": 2.0, "micro": 0}, 2 * step + 1, start + 1000))
        records.append(Event("optimizer", step, {"optimizer": 0, "lr": [0.1]}, 2 * step + 2, start + 2000))
    return Run.from_records(records, RunMeta("bench", started_ns=BEGAN))


def _span(brick: Brick, step: int, phase: str, start: int, took: int, number: int, parent: int) -> Span:
    told = {"device_start_ns": start + 5000}
    return Span(brick, step, start, start + took, phase, number, parent, took, 0, attributes=told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spans", nargs="*", type=int, default=[20_000, 80_000])
    sizes = parser.parse_args().spans
    print(f"{'format':<12} {'spans':>9} {'CPU s':>7} {'peak MB':>8} {'file MB':>8}")
    with tempfile.TemporaryDirectory() as home:
        for spans in sizes:
            folder = made(spans).save(Path(home) / f"run-{spans}")
            for name in FORMATS:
                out = Path(home) / f"{name}-{spans}"
                took = cost("-m", "brickprof", "export", str(folder), "--to", name, "-o", str(out))
                files = [out] if out.is_file() else [file for file in out.rglob("*") if file.is_file()]
                size = sum(file.stat().st_size for file in files) / 2**20
                print(f"{name:<12} {spans:>9,} {took.seconds:>7.1f} {took.peak_mb:>8.0f} {size:>8.1f}")


if __name__ == "__main__":
    main()
