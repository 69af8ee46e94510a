"""How long a diagnosis takes: `python benchmarks/diagnosis.py`, by default 10,000 steps of 300 tensors.

Enters: a size. Leaves: seconds and peak memory of a fresh process that opens such a run and judges it by every rule;
of a healthy run, and of one whose last step broke.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from brickprof.bricks import Brick, Kind  # noqa: E402
from brickprof.journal import Journal, rank_folder, write_meta  # noqa: E402
from brickprof.records import ROLES, RunMeta  # noqa: E402

_GRAD = ROLES.index("grad")
_SECOND = 10**9


def write(folder: Path, steps: int, tensors: int, *, broken: bool) -> None:
    """A run in which every gradient of every step was sampled, which no budget of ours would do."""
    write_meta(folder, RunMeta(run_id="bench", script="bench.py"))
    journal = Journal(rank_folder(folder, 0), max_bytes=2**40)
    chance = random.Random(0)
    brick = [journal.brick(Brick(Kind.BLOCK, f"blocks.{i // 4}")) for i in range(tensors)]
    fields = {"model": "GPT", "shape": [64, 64], "dtype": "float32", "device": "cpu", "trainable": True}
    names = [journal.tensor(f"blocks.{i // 4}.w{i % 4}", {**fields, "brick": brick[i]}) for i in range(tensors)]
    journal.event("model", 0, {"model": "GPT", "cls": "GPT", "parameters": 4096 * tensors, "trainable": 4096 * tensors})
    groups = [{"tensors": names, "lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}]
    journal.event("optimizer_created", 0, {"optimizer": 0, "cls": "AdamW", "groups": groups})
    for step in range(steps):
        stamp = 10**18 + step * _SECOND
        last = broken and step == steps - 1
        loss = math.nan if last else 2 + 3 * math.exp(-step / (steps / 4)) + chance.gauss(0, 0.05)
        journal.event("loss", step, {"value": loss, "micro": 0, "grad_fn": "NllLossBackward0", "zeroed": 1})
        journal.event("clip", step, {"norm": 1.0 + chance.random(), "max_norm": 5.0, "how": "norm", "tensors": tensors})
        journal.event("optimizer", step, {"optimizer": 0, "lr": [3e-4], "count": step + 1, "skipped": False})
        for i in range(tensors):
            size = chance.lognormvariate(-3, 0.3)
            nan = 7 if last and i == tensors // 2 else 0
            journal.sample((stamp + i, step, 0, brick[i], names[i], _GRAD, 4096, nan, 0, size, 20 * size, 0.0, 0.0,
                            None, None, None, None))  # fmt: skip
        if step % 50 == 0:
            journal.flush()
    journal.event("exit", steps, {"steps": steps, "costs": {}, "overhead": 0.001})
    journal.close()


JUDGE = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[2])
began = time.perf_counter()
from brickprof.diagnosis import diagnose
from brickprof.run import Run
imported = time.perf_counter()
found = diagnose(Run.open(sys.argv[1]))
ended = time.perf_counter()
print(json.dumps({
    "seconds": ended - imported, "imports": imported - began,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "verdict": found.verdict.value, "findings": [f.root_cause for f in found.findings],
}))
"""


def judged(folder: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", JUDGE, str(folder), str(ROOT)], capture_output=True, text=True, check=True
    )
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        for name, broken in (("healthy", False), ("broken", True)):
            folder = Path(scratch) / name
            began = time.perf_counter()
            write(folder, args.steps, args.tensors, broken=broken)
            print(
                f"{name}: {args.steps:,} steps x {args.tensors} tensors written in {time.perf_counter() - began:.0f} s"
            )
            results[name] = judged(folder)
            print(
                "  {verdict} {findings}: {seconds:.1f} s, {peak_mb:.0f} MB, imports {imports:.1f} s".format(
                    **results[name]
                )
            )
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
