"""What a step costs that is watched, timed from outside: `python benchmarks/outside.py --case 124m-compiled`.

Enters: a case of train_case.py. Leaves: for every function of torch that brickprof stands in front of, the microseconds
a step that go by in it and not in what it stands in front of; their sum; and what the session says itself. The clocks
take time too: what they read in the same process before anybody watches is taken off. Nothing here believes the
session's own account: that is what is being checked. Its thread that writes is not seen here, and neither are hooks on
modules, which no step has that nobody looks at.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from overhead import WARM_UP_STEPS
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler, optimizer
from torch.utils.data import dataloader
from train_case import CASES, Training

import brickprof
from brickprof.capture import hub

PLACES: tuple[tuple[Any, str, str], ...] = (
    (dataloader._BaseDataLoaderIter, "__next__", "a batch"),
    (dataloader.DataLoader, "__iter__", "an epoch"),
    (optimizer.Optimizer, "zero_grad", "zero_grad"),
    (torch.autograd, "backward", "backward"),
    (clip_grad, "_get_total_norm", "clip, the norm"),
    (clip_grad, "_clip_grads_with_norm_", "clip, the scaling"),
    (lr_scheduler.LRScheduler, "step", "schedule"),
)
HOOKS: tuple[tuple[Any, str], ...] = (
    (optimizer._global_optimizer_pre_hooks, "before an update"),
    (optimizer._global_optimizer_post_hooks, "after an update"),
)
_counter = time.perf_counter_ns


class Clock:
    """Nanoseconds that went by in a place, less those in what it calls."""

    def __init__(self) -> None:
        self.total = self.inner = 0

    def outside(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.inner, start = 0, _counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.total += _counter() - start - self.inner

        return timed

    def inside(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = _counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.inner += _counter() - start

        return timed


@contextmanager
def clocks() -> Iterator[dict[str, Clock]]:
    """Around whatever stands in the places now, and around torch's own functions inside it."""
    made: dict[str, Clock] = {}
    with ExitStack() as stack:
        for owner, name, label in PLACES:
            clock, there = made.setdefault(label, Clock()), owner.__dict__[name]
            cells = dict(zip(there.__code__.co_freevars, there.__closure__ or (), strict=True))
            if there.__code__.co_filename.startswith(brickprof.__path__[0]):
                cell = cells["original"]
                stack.callback(setattr, cell, "cell_contents", cell.cell_contents)
                cell.cell_contents = clock.inside(cell.cell_contents)
                setattr(owner, name, clock.outside(there))
            else:
                setattr(owner, name, clock.outside(clock.inside(there)))
            stack.callback(setattr, owner, name, there)
        for table, label in HOOKS:
            clock = made.setdefault(label, Clock())
            for number, hook in list(table.items()):
                table[number] = clock.outside(hook)
                stack.callback(table.__setitem__, number, hook)
        yield made


def timed(training: Training, steps: int) -> tuple[dict[str, float], float]:
    """Microseconds a step in each place, and of a step."""
    with clocks() as made:
        training.run(20)
        for clock in made.values():
            clock.total = 0
        wall = training.run(steps)["wall"]
        hub.settle()
    return {label: clock.total / steps / 1e3 for label, clock in made.items()}, wall / steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=tuple(CASES), default="124m-compiled")
    parser.add_argument("--level", choices=("light", "standard"), default="light")
    parser.add_argument("--steps", type=int, default=1000, help="timed, of each kind; default %(default)s")
    args = parser.parse_args()
    training = Training(CASES[args.case])
    training.run(20)
    plain, _ = timed(training, max(args.steps // 4, 50))
    with (
        tempfile.TemporaryDirectory() as folder,
        brickprof.attach(training.model, out=folder, level=args.level) as watching,
    ):
        training.run(WARM_UP_STEPS)
        session = watching._session
        before, written = session.spent, session.journal.written_ns
        found, step = timed(training, args.steps)
        steps = args.steps + 20
        said, writing = (session.spent - before) / steps / 1e3, (session.journal.written_ns - written) / steps / 1e3
    print(f"{args.case} at level {args.level}, {args.steps} steps of {step / 1e3:.2f} ms; us a step")
    total = 0.0
    for label, spent in found.items():
        total += spent - plain[label]
        print(f"  {label:20s} {spent - plain[label]:7.1f}")
    print(f"  {'in all':20s} {total:7.1f}   {total / step:.3%} of the step")
    print(f"  {'it says':20s} {said:7.1f}   {said / step:.3%}, and {writing:.1f} us in the thread that writes")


if __name__ == "__main__":
    main()
