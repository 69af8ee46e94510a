"""What a launch takes the host before windows of the profiler, and after them: `python benchmarks/launches.py`.

Enters: nothing; needs a GPU. Leaves: a table on stdout: microseconds a launch of a small kernel, before any window and
after each of three, where the profiler lets go of the device and where it stays attached, each in a process of its own.
"""

from __future__ import annotations

import json
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

    from brickprof.capture.taps.kineto import Window, restore

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
        window.begin()
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
    sys.path.insert(0, str(ROOT))
    import torch

    if not torch.cuda.is_available():
        sys.exit("launches.py: there is no GPU here")
    if len(sys.argv) > 1:
        print(json.dumps(measure(leaves=sys.argv[1] == "leaves")))
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds a launch")
    heads = "".join(f"{f'window {number + 1}':>10}" for number in range(WINDOWS))
    print(f"{'the profiler':20} {'before':>8}{heads}   ratio")
    for how in ("stays", "leaves", "stays", "leaves"):
        done = subprocess.run([sys.executable, __file__, how], capture_output=True, text=True, check=True)
        before, *after = json.loads(done.stdout)
        rows = "".join(f"{each:10.2f}" for each in after)
        print(f"{how:20} {before:8.2f}{rows}   {statistics.median(after) / before:.2f}")


if __name__ == "__main__":
    main()
