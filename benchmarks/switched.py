"""What watching costs inside one process: `brickprof run --level light benchmarks/switched.py --case 124m-compiled`.

Enters: a case of train_case.py, in a process that brickprof watches. Leaves: one line with the ratio of blocks that
are watched to blocks that are not, with its 95 % interval, the same of two blocks neither of which is watched (A/A:
what the machine does by itself), the same ratios of CPU seconds, which say more where others share the cores, and
what the session says that it spent in the watched ones. Two processes of the same program differ by up to three per
cent where the device waits for the host; all blocks here share one process, and that is gone. The patches stay where
they are in the other blocks and find nobody to tell: their bare cost, a few calls of Python in a step, is on both
sides. overhead.py counts it in, and is the measurement; this one is its magnifying glass.
"""

from __future__ import annotations

import argparse
import time
from itertools import cycle, permutations

from overhead import CUDA_BLOCK_SECONDS, WARM_UP_STEPS, interval, middle
from train_case import CASES, Training

from brickprof.capture import hub

REPORT_EVERY = 6
UNTIMED_STEPS = 3
"""After a switch: what the other side left in the device's queue and in flight."""


class Switch:
    """Takes the sessions of this process away and gives them back."""

    def __init__(self) -> None:
        self._sessions = list(hub.sessions)
        if not self._sessions:
            raise SystemExit("nobody watches this process: start it under `brickprof run`")

    @property
    def spent(self) -> int:
        """Nanoseconds that the sessions have spent so far, on the thread that trains."""
        return sum(session.spent for session in self._sessions)

    def turn(self, on: bool) -> None:
        hub.settle()
        hub.sessions[:] = self._sessions if on else []
        for session in hub.sessions:
            session._step_started = time.perf_counter_ns()  # what passed meanwhile is no step of theirs
        hub.listen()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=tuple(CASES), default="124m-compiled")
    parser.add_argument("--rounds", type=int, default=30, help="of three blocks, at most; default %(default)s")
    parser.add_argument("--seconds", type=float, default=120.0, help="at most; default %(default)s")
    parser.add_argument("--block", type=float, default=CUDA_BLOCK_SECONDS, help="seconds of one block")
    args = parser.parse_args()
    training = Training(CASES[args.case])
    training.run(WARM_UP_STEPS)
    switch = Switch()
    step = training.run(20)["wall"] / 20
    steps = max(4, round(args.block / step))
    rounds: list[dict[str, float]] = []
    busy: list[dict[str, float]] = []
    spent, until = 0, time.perf_counter() + args.seconds
    for _, order in zip(range(args.rounds), cycle(permutations(("plain", "again", "watched"))), strict=False):
        if time.perf_counter() > until:
            break
        walls, cpus = {}, {}
        for side in order:
            switch.turn(side == "watched")
            training.run(UNTIMED_STEPS)
            hub.settle()
            before, cpu = switch.spent, time.process_time()
            wall, ended = training.run(steps)["wall"], time.perf_counter()
            hub.settle()  # what was noted in the block and is still to be worked off belongs to it
            training.synchronise()
            walls[side] = wall + time.perf_counter() - ended
            cpus[side] = time.process_time() - cpu
            spent += switch.spent - before
        rounds.append(walls)
        busy.append(cpus)
        if not len(rounds) % REPORT_EVERY:
            print(f"{len(rounds)} rounds, {_found(rounds, busy, spent)}", flush=True)
    switch.turn(True)
    step = sum(walls["plain"] for walls in rounds) / len(rounds) / steps
    print(f"{args.case}, {len(rounds)} rounds of {steps} steps of {1e3 * step:.2f} ms: {_found(rounds, busy, spent)}")


def _found(rounds: list[dict[str, float]], busy: list[dict[str, float]], spent: int) -> str:
    plain = sum(walls["plain"] for walls in rounds)
    return (
        f"watched / plain {_ratio(rounds, 'watched')}, A/A {_ratio(rounds, 'again')}; "
        f"CPU {_ratio(busy, 'watched')}, A/A {_ratio(busy, 'again')}; own account {spent / 1e9 / plain:.4f}"
    )


def _ratio(rounds: list[dict[str, float]], side: str) -> str:
    """Of a watched block to the two beside it that are not; of these two to one another."""
    if side == "watched":
        pairs = [taken[side] * 2 / (taken["plain"] + taken["again"]) for taken in rounds]
    else:
        pairs = [taken[side] / taken["plain"] for taken in rounds]
    low, high = interval([pairs])
    return f"{middle([pairs]):.4f} ({low:.4f}-{high:.4f})"


if __name__ == "__main__":
    main()
