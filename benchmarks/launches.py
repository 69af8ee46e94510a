"""What a launch takes the host before windows of the profiler, and after them: `python benchmarks/launches.py`.

Enters: nothing; needs a GPU. Leaves: a table on stdout: microseconds a launch of a small kernel, before any window and
after each of three, where the profiler lets go of the device and where it stays attached, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAUNCHES, ROUNDS, WINDOWS = 300, 60, 3


def measure(*, leaves: bool) -> list[float]:
    """Medians: before, and after each window."""
    import torch

    from brickprof.capture.taps.kineto import Window, restore, ways

    if leaves and not ways().leaves:
        sys.exit("launches.py: the profiler does not let go of the device with this CUDA")
    value = torch.ones(64, device="cuda")

    def launches() -> float:
        took = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(LAUNCHES):
                value.add_(1)
            took.append((time.perf_counter() - start) / LAUNCHES * 1e6)
        return statistics.median(took)

    launches()
    found = [launches()]
    for _ in range(WINDOWS):
        window = Window(leaves=leaves)
        assert window.begin(), "the profiler is in use"
        for _ in range(LAUNCHES):
            value.add_(1)
        torch.cuda.synchronize()
        assert window.end(), "the window has seen nothing"
        value.add_(1)  # what comes next takes it down
        time.sleep(0.3)
        restore()
        found.append(launches())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", choices=("stays", "leaves"), help="measure this alone, and print it as JSON")
    one = parser.parse_args().one
    sys.path.insert(0, str(ROOT))
    import torch

    if not torch.cuda.is_available():
        sys.exit("launches.py: there is no GPU here")
    if one is not None:
        print(json.dumps(measure(leaves=one == "leaves")))
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds a launch")
    heads = "".join(f"{f'window {number + 1}':>10}" for number in range(WINDOWS))
    print(f"{'the profiler':20} {'before':>8}{heads}   ratio")
    given = {name: value for name, value in os.environ.items() if name != "TEARDOWN_CUPTI"}
    for how in ("stays", "leaves", "stays", "leaves"):
        command = [sys.executable, __file__, "--one", how]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=given)
        before, *after = json.loads(done.stdout)
        rows = "".join(f"{each:10.2f}" for each in after)
        print(f"{how:20} {before:8.2f}{rows}   {statistics.median(after) / before:.2f}")


if __name__ == "__main__":
    main()
