"""How long the web page takes: `python benchmarks/page.py`, by default 10,000 steps of 300 tensors.

Enters: a size, or a run that is there already. Leaves: of a fresh process that opens the run, judges it and writes its
page: seconds and CPU seconds of judging and of the page, the peak of its memory, and the size of the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from diagnosis import write  # noqa: E402

MEASURE = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[2])
from brickprof.diagnosis import diagnose
from brickprof.reports import html
from brickprof.run import Run
clocks = lambda: (time.perf_counter(), time.process_time())
marks = [clocks()]
run = Run.open(sys.argv[1])
found = diagnose(run)
marks.append(clocks())
page = html.text(found, run)
marks.append(clocks())
(judged, judged_cpu), (drawn, drawn_cpu) = ((b[0] - a[0], b[1] - a[1]) for a, b in zip(marks, marks[1:]))
print(json.dumps({
    "judged": judged, "judged_cpu": judged_cpu, "page": drawn, "page_cpu": drawn_cpu, "bytes": len(page),
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""


def measured(folder: Path) -> dict[str, float]:
    command = [sys.executable, "-c", MEASURE, str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="measure this run instead of making one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        folder = args.run or Path(scratch) / "run"
        if not args.run:
            write(folder, args.steps, args.tensors, broken=True)
        told = measured(folder)
    print(
        f"judged in {told['judged']:.1f} s ({told['judged_cpu']:.1f} s of CPU), page in {told['page']:.1f} s "
        f"({told['page_cpu']:.1f} s of CPU), {told['bytes'] / 1e6:.2f} MB, peak {told['peak_mb']:,.0f} MB"
    )


if __name__ == "__main__":
    main()
