"""How fast logs are read: `python benchmarks/logs.py --size 1000`.

Enters: a size in MB. Leaves: MB/s of a text log and of a JSONL beside pandas.read_json(lines=True) on the same bytes,
in the same run, on one core each; the peak memory of a process; two processes on all cores against one on one. Each
measurement is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

BLOCK = 50_000
PROGRAM = """
import json, os, resource, sys, time
what, path, jobs = sys.argv[1:]
if jobs == "1" and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, threads and all
if what == "pandas":
    import pandas as pd
    began = time.perf_counter()
    frame = pd.read_json(path, lines=True)
    told = len(frame)
else:
    from brickprof import logs
    from brickprof.analysis.engines import engine
    logs.readers()
    with engine(jobs=int(jobs)) as where:
        list(where.map(time.sleep, [0.5] * 2 * int(jobs)))  # every process is up, with its readers loaded
        began = time.perf_counter()
        log = logs.read(path, mapped=where.map)
        told = max((series.count for series in log.series.values()), default=0)
seconds = time.perf_counter() - began
own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps({"seconds": seconds, "mb": max(own, children) / 1024, "rows": told}))
"""


def text_line(step: int) -> str:
    loss, norm = 2 + 8 * math.exp(-step / 2e5), 1 + 0.3 * math.cos(step)
    told = f"step {step:>8}/9999999 | loss {loss:.6f} | norm {norm:.4f} | lr 3.00e-04 |"
    return f"{told} {412.3 + step % 7:.2f} ms | {125_000 + step % 977} tok/s\n"


def json_line(step: int) -> str:
    loss, norm = 2 + 8 * math.exp(-step / 2e5), 1 + 0.3 * math.cos(step)
    return (
        json.dumps(
            {
                "step": step,
                "loss": round(loss, 6),
                "grad_norm": round(norm, 4),
                "lr": 3e-4,
                "tok_s": 125_000 + step % 977,
            }
        )
        + "\n"
    )


def make(path: Path, line, size: int) -> int:
    """A log of about ``size`` MB."""
    step = 0
    with path.open("w") as stream:
        while stream.tell() < size * 1_000_000:
            stream.write("".join(map(line, range(step, step + BLOCK))))
            step += BLOCK
    return path.stat().st_size


def measured(what: str, path: Path, jobs: int = 1) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, what, str(path), str(jobs)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{what} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def best(what: str, path: Path, jobs: int, repeats: int) -> dict[str, float]:
    return min((measured(what, path, jobs) for _ in range(repeats)), key=lambda one: one["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=100, metavar="MB", help="of each log; 1000 is what the README says")
    parser.add_argument("--repeats", type=int, default=1, help="the quickest counts")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    table = Table("what", title=f"Reading logs of {args.size} MB", title_justify="left")
    for heading in ("processes", "seconds", "MB/s", "peak MB", "against"):
        table.add_column(heading, justify="right")
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        for name, line in (("text", text_line), ("jsonl", json_line)):
            path = Path(scratch) / f"train.{'log' if name == 'text' else name}"
            size = make(path, line, args.size) / 1e6
            one = best("brickprof", path, 1, args.repeats)
            rows = [(name, 1, one, "")]
            two = best("brickprof", path, 2, args.repeats)
            rows.append((name, 2, two, f"{one['seconds'] / two['seconds']:.2f}x one process"))
            if name == "jsonl":
                other = best("pandas", path, 1, args.repeats)
                rows.append(("pandas.read_json(lines=True)", 1, other, ""))
                rows[0] = (name, 1, one, f"{other['seconds'] / one['seconds']:.1f}x pandas")
            for what, jobs, result, against in rows:
                speed = size / result["seconds"]
                table.add_row(
                    what, str(jobs), f"{result['seconds']:.2f}", f"{speed:.0f}", f"{result['mb']:.0f}", against
                )
                found.append({"what": what, "processes": jobs, "mb_per_second": speed, **result})
            path.unlink()
    Console().print(table)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
