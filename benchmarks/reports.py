"""How long a report takes: `python benchmarks/reports.py`, by default of 10,000 steps of 300 tensors.

Enters: a size. Leaves: seconds and peak memory of `brickprof show` and `brickprof report`, each in a process of its
own, of a run that was judged when it ended and of the same one that nobody has judged yet (``anew``: whatever an
earlier command stored is taken away before each); and of judging alone.
What is promised is wall time, of the quickest of some rounds: other work on the machine makes it longer, and CPU time
(user and system, of all processes of a command) only a little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "benchmarks"))

from diagnosis import write  # noqa: E402

wall = attrgetter("wall")
PROMISED = {"terminal": (1.0, None), "html": (5.0, 1024)}
"""Seconds of the clock, and MB."""

STORE = """
import sys
from brickprof.diagnosis import diagnose
from brickprof.diagnosis.saving import write
from brickprof.run import Run
run = Run.open(sys.argv[1])
write(diagnose(run), run.path, run)
"""


class Cost(NamedTuple):
    seconds: float
    wall: float
    peak_mb: float


def cost(*words: str) -> Cost:
    """What one command took, its imports included."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(ROOT)
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               env=environment)  # fmt: skip
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(words)} failed: {said.decode(errors='replace')}")
    return Cost(used.ru_utime + used.ru_stime, time.perf_counter() - began, used.ru_maxrss / 1024)


def measured(folder: Path, rounds: int, *, anew: bool) -> dict[str, Cost]:
    """The least of some rounds: noise only adds."""

    def once(words: tuple[str, ...]) -> Cost:
        for name in ("diagnosis.json", "judged.json") if anew else ():
            (folder / name).unlink(missing_ok=True)
        return cost(*words)

    page = str(folder / "report.html")
    commands = {
        "terminal": ("-m", "brickprof", "show", str(folder)),
        "terminal, as a file": ("-m", "brickprof", "report", str(folder), "-r", "terminal", "-o", f"{folder}.txt"),
        "html": ("-m", "brickprof", "report", str(folder), "-o", page),
        "json": ("-m", "brickprof", "report", str(folder), "-r", "json", "-o", f"{folder}.json"),
    }
    return {name: min((once(words) for _ in range(rounds)), key=wall) for name, words in commands.items()}


def shown(results: dict[str, dict[str, Cost]]) -> None:
    print(f"{'':28}{'CPU s':>8}{'wall s':>8}{'peak MB':>9}   promised")
    for state, costs in results.items():
        for name, one in costs.items():
            most = PROMISED.get(name, (None, None))
            said = " ".join(f"{limit:g} {unit}" for limit, unit in zip(most, ("s", "MB"), strict=True) if limit)
            print(f"{state + ': ' + name:28.28}{one.seconds:8.2f}{one.wall:8.2f}{one.peak_mb:9.0f}   {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="a run to take instead of one that is made")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        folder = args.run or Path(scratch) / "run"
        if args.run is None:
            write(folder, args.steps, args.tensors, broken=True)
            print(f"{args.steps:,} steps x {args.tensors} tensors")
        results = {"anew": measured(folder, args.rounds, anew=True)}
        judging = cost("-c", STORE, str(folder))
        results["stored"] = {**measured(folder, args.rounds, anew=False), "judging and storing": judging}
    shown(results)
    if args.json:
        told = {state: {name: one._asdict() for name, one in costs.items()} for state, costs in results.items()}
        args.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
