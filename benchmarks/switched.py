"""What watching costs inside one process: `brickprof run --level light benchmarks/switched.py --case 124m-compiled`.

Enters: a case of train_case.py, in a process that brickprof watches. Leaves: one line with the ratio of blocks that
are watched to blocks that are not, and its 95 % interval. Two processes of the same program differ by up to three
per cent where the device waits for the host; the two kinds of blocks here share one process, and that is gone.
The patches stay where they are in the other blocks and find nobody to tell: their bare cost, a few calls of Python
in a step, is on both sides. overhead.py counts it in, and is the measurement; this one is its magnifying glass.
"""

from __future__ import annotations

import argparse
import statistics
import time

from overhead import CUDA_BLOCK_SECONDS, interval, middle
from train_case import CASES, Training

from brickprof.capture import hub

WARM_UP_STEPS = 160
UNTIMED_STEPS = 3
"""After a switch: what the other side left in the device's queue and in flight."""


class Switch:
    """Takes the sessions of this process away and gives them back."""

    def __init__(self) -> None:
        self._sessions = list(hub.sessions)
        if not self._sessions:
            raise SystemExit("nobody watches this process: start it under `brickprof run`")

    def turn(self, on: bool) -> None:
        hub.settle()
        hub.sessions[:] = self._sessions if on else []
        hub.listen()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=tuple(CASES), default="124m-compiled")
    parser.add_argument("--rounds", type=int, default=30, help="pairs of blocks")
    parser.add_argument("--block", type=float, default=CUDA_BLOCK_SECONDS, help="seconds of one block")
    args = parser.parse_args()
    training = Training(CASES[args.case])
    training.run(WARM_UP_STEPS)
    switch = Switch()
    step = training.run(20)["wall"] / 20
    steps = max(4, round(args.block / step))
    walls: dict[bool, list[float]] = {True: [], False: []}
    for number in range(args.rounds):
        for on in (True, False) if number % 2 else (False, True):
            switch.turn(on)
            training.run(UNTIMED_STEPS)
            hub.settle()
            wall, ended = training.run(steps)["wall"], time.perf_counter()
            hub.settle()  # what was noted in the block and is still to be worked off belongs to it
            training.synchronise()
            walls[on].append(wall + time.perf_counter() - ended)
    switch.turn(True)
    pairs = [watched / alone for watched, alone in zip(walls[True], walls[False], strict=True)]
    low, high = interval([pairs])
    print(
        f"{args.case}, {args.rounds} pairs of {steps} steps of {1e3 * statistics.median(walls[False]) / steps:.2f} ms: "
        f"watched / not {middle([pairs]):.4f} ({low:.4f}-{high:.4f}), "
        f"all seconds {sum(walls[True]) / sum(walls[False]):.4f}"
    )


if __name__ == "__main__":
    main()
