"""What watching costs inside one process: `brickprof run --level light benchmarks/switched.py --case 124m-compiled`.

Enters: a case of train_case.py, in a process that brickprof watches. Leaves: one line with the ratio of blocks that
are watched to blocks that are not, with its 95 % interval; the same of two blocks neither of which is watched (A/A:
what the machine does by itself); the same ratios of CPU seconds, which say more where others share the cores; what the
session says that it spent in the watched ones, and how much more than that the ratio found.

Two processes of the same program differ by up to three per cent where the device waits for the host; all blocks here
share one process, and that is gone. In the other blocks nobody watches, and torch's functions are torch's own again;
hooks on modules, where there are any, stay, and so does the thread that writes what came last.
A watched block ends with working off what it noted, which a training does every second or three: short blocks are
dearer than a training is. How far the ratio is from the account hardly depends on that, and tells what the account
of a whole run leaves out.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from itertools import cycle, permutations
from typing import Any

import torch
from overhead import CUDA_BLOCK_SECONDS, WARM_UP_STEPS
from results import interval, middle
from torch.optim import optimizer
from train_case import CASES, Training

from brickprof.capture import hub, patches

REPORT_EVERY = 6
UNTIMED_STEPS = 3
"""After a switch: what the other side left in the device's queue and in flight."""


LEFT_ALONE = (torch, torch.jit, torch.cuda, torch.nn.Module, torch.fx.GraphModule)
"""Functions of theirs stand in no step; to exchange them may compile a model anew."""


@dataclass(frozen=True)
class Round:
    """Seconds of three blocks next to each other, by side."""

    wall: dict[str, float]
    cpu: dict[str, float]
    own: float
    """What the session says that it took of the watched one."""


class Switch:
    """Takes the sessions of this process away, and what stands in front of torch's functions; gives them back."""

    def __init__(self, compiled: bool) -> None:
        self._sessions = list(hub.sessions)
        if not self._sessions:
            raise SystemExit("nobody watches this process: start it under `brickprof run`")
        self._on = True
        self._alone = (*LEFT_ALONE, torch.nn.functional) if compiled else LEFT_ALONE
        tables = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
        self._hooks = [
            (table, number, hook)
            for table in tables
            for number, hook in table.items()
            if hook.__module__.startswith("brickprof.")
        ]

    @property
    def spent(self) -> int:
        """Nanoseconds that the sessions have spent so far, on the thread that trains and on the one that writes."""
        return sum(session.spent + session.journal.written_ns for session in self._sessions)

    def turn(self, on: bool) -> None:
        if on == self._on:
            return
        hub.settle()
        self._on = on
        hub.sessions[:] = self._sessions if on else []
        for owner, name, ours, original in self._replaced():
            setattr(owner, name, ours if on else original)
        for table, number, hook in self._hooks:
            if on:
                table[number] = hook
            else:
                table.pop(number, None)
        for session in hub.sessions:
            session._step_started = time.perf_counter_ns()  # what passed meanwhile is no step of theirs
        hub.listen()

    def _replaced(self) -> list[tuple[Any, str, Any, Any]]:
        """Owner, name, what is there and what was there, of every function that was replaced; some were twice."""
        made: dict[tuple[int, str], tuple[Any, str, Any, Any]] = {}
        for undo in patches._undo:
            cells = undo.__closure__ if getattr(undo, "__name__", "") == "undo" else ()
            found = dict(zip(undo.__code__.co_freevars, (c.cell_contents for c in cells), strict=True)) if cells else {}
            owner, name = found.get("owner"), found.get("name", "")
            if found and not any(owner is each for each in self._alone):
                first = made.get((id(owner), name))
                made[id(owner), name] = owner, name, found["put"], first[3] if first else found["original"]
        return list(made.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=tuple(CASES), default="124m-compiled")
    parser.add_argument("--rounds", type=int, default=30, help="of three blocks, at most; default %(default)s")
    parser.add_argument("--seconds", type=float, default=120.0, help="at most; default %(default)s")
    parser.add_argument("--block", type=float, default=CUDA_BLOCK_SECONDS, help="seconds of one block")
    args = parser.parse_args()
    training = Training(CASES[args.case])
    training.run(WARM_UP_STEPS)
    switch = Switch(CASES[args.case].compiled)
    for side in (False, True):  # what is compiled anew is compiled now
        switch.turn(side)
        training.run(UNTIMED_STEPS)
    step = training.run(20)["wall"] / 20
    steps = max(4, round(args.block / step))
    rounds: list[Round] = []
    until = time.perf_counter() + args.seconds
    for _, order in zip(range(args.rounds), cycle(permutations(("plain", "again", "watched"))), strict=False):
        if time.perf_counter() > until:
            break
        walls, cpus, own = {}, {}, 0.0
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
            if side == "watched":
                own = (switch.spent - before) / 1e9
        rounds.append(Round(walls, cpus, own))
        if not len(rounds) % REPORT_EVERY:
            print(f"{len(rounds)} rounds, {_found(rounds)}", flush=True)
    switch.turn(True)
    if not rounds:
        raise SystemExit("not one round: give it more --seconds")
    step = sum(each.wall["plain"] for each in rounds) / len(rounds) / steps
    print(f"{args.case}, {len(rounds)} rounds of {steps} steps of {1e3 * step:.2f} ms: {_found(rounds)}")


def _found(rounds: list[Round]) -> str:
    """Of a watched block to the two beside it that are not; of these two to one another."""
    base = [(each.wall["plain"] + each.wall["again"]) / 2 for each in rounds]
    own = [each.own / plain for each, plain in zip(rounds, base, strict=True)]
    ratios = [each.wall["watched"] / plain for each, plain in zip(rounds, base, strict=True)]
    busy = [2 * each.cpu["watched"] / (each.cpu["plain"] + each.cpu["again"]) for each in rounds]
    return (
        f"watched / plain {_told(ratios)}, A/A {_told([each.wall['again'] / each.wall['plain'] for each in rounds])}; "
        f"CPU {_told(busy)}, A/A {_told([each.cpu['again'] / each.cpu['plain'] for each in rounds])}; "
        f"own account {sum(each.own for each in rounds) / sum(base):.4f}, "
        f"beyond it {_told([ratio - 1 - told for ratio, told in zip(ratios, own, strict=True)])}"
    )


def _told(values: list[float]) -> str:
    low, high = interval([values])
    return f"{middle([values]):.4f} ({low:.4f} to {high:.4f})"


if __name__ == "__main__":
    main()
