"""Canaries: what a Triton kernel of the user's writes outside of its arguments, and what it is told of them.

Enters: launches in steps that are captured in full (``--level deep``, ``--deep-at``, escalation). The first three of
each kernel from one line on the same shapes are made once more, then every one whose number is a power of two: before
the launch itself, on copies of its arguments that lie between guards. Leaves: a ``canary`` event for such a launch that
wrote into a guard (which argument, on which side, how many bytes and how far away), and ``canaries`` events that say
how much was looked at, and what was not, and why. Of every launch that is told other numbers, or given tensors that are
laid out in another way, an ``arguments`` event with both.

The launch itself is made as if nothing had been: what a broken kernel does to its neighbours it still does.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

import torch

from brickprof.bricks import Brick, Kind
from brickprof.capture import shadows
from brickprof.capture.guards import Guarded
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.shadows import Refused
from brickprof.capture.surroundings import hands_off
from brickprof.capture.taps import triton_calls
from brickprof.capture.taps.triton_calls import Call

_FIRST = 3
_MOST_LIKENESSES = 1024
_MOST_TOLD, _MOST_OF_ONE = 64, 8
_MOST_NAMED = 16
_MOST_GIVEN, _MOST_GIVEN_TO_ONE = 256, 16
_counter = time.perf_counter_ns


class CanariesProbe(Probe):
    name = "canaries"
    every_step = ("step_begin",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._listening = False
        self._launches: Counter[Hashable] = Counter()
        """By kernel, line and shapes."""
        self._heard = self._touched = self._partly = 0
        self._checked: Counter[str] = Counter()
        """By kernel: launches whose guards have been looked at."""
        self._told: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._unwritten = 0
        self._given: set[Hashable] = set()
        self._given_to: Counter[Hashable] = Counter()
        """By kernel and line: launches whose numbers were written down."""
        self._due = 1
        self._attend(session.on.deep)

    def step_begin(self, step: int) -> None:
        self._attend(self.session.on.deep)
        if self._heard and self._checked.total() + self._refused.total() >= self._due:
            self._tell()

    def close(self) -> None:
        self._attend(False)
        if self._heard:
            self._tell()

    def _attend(self, wanted: bool) -> None:
        if wanted and not self._listening:
            self._listening = triton_calls.listen(self.launched)
        elif self._listening and not wanted:
            triton_calls.stop()
            self._listening = False

    def launched(self, call: Call) -> None:
        """A kernel is about to be launched."""
        start = _counter()
        try:
            self._look(call)
        except Refused as reason:
            self._refused[str(reason)] += 1
        except torch.OutOfMemoryError:
            self._refused["there is no memory for copies"] += 1
        except Exception as error:
            self.session.failed(self.name, error)
            if self.session.is_off(self.name):
                self._attend(False)
        self.session.charge(self.name, _counter() - start)

    def _look(self, call: Call) -> None:
        self._heard += 1
        if hands_off():
            raise Refused("a graph is captured, or a mode of the script's is on")
        if threading.get_ident() != self.session.thread and not self.session.in_backward:
            raise Refused("it is launched from another thread")
        tensors = shadows.arguments(call)
        if not call.benchmark:
            self._write_down(call, tensors)
        if call.benchmark or self._turn(call, tensors):
            kernel = shadows.check(call, tensors)
            with torch.no_grad():
                self._shadow(call, kernel, tensors)

    def _write_down(self, call: Call, tensors: Mapping[str, torch.Tensor]) -> None:
        """The numbers of a launch, where none like it has been written down."""
        like, of = shadows.likeness(call, tensors), (id(call.function), call.site)
        if like in self._given or not any(each.ndim > 1 for each in tensors.values()):
            return
        if len(self._given) >= _MOST_GIVEN or self._given_to[of] >= _MOST_GIVEN_TO_ONE:
            self._unwritten += 1
            return
        self._given.add(like)
        self._given_to[of] += 1
        kernel = str(call.function.__name__)
        brick = self.session.journal.brick(Brick(Kind.KERNEL, kernel))
        told = {"kernel": kernel, "site": call.site, "brick": brick, **shadows.layout(call, tensors)}
        self.session.fact("arguments", told, always=True)

    def _turn(self, call: Call, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Whether it is the turn of a launch: one of the first that are like it, or, ever more rarely, a later one."""
        key = (id(call.function), call.site, *((name, each.dtype, each.shape) for name, each in tensors.items()))
        if key not in self._launches and len(self._launches) >= _MOST_LIKENESSES:
            raise Refused("its shapes are among too many")
        self._launches[key] += 1
        number = self._launches[key]
        return number <= _FIRST or not number & (number - 1)

    def _shadow(self, call: Call, kernel: str, tensors: Mapping[str, torch.Tensor]) -> None:
        session, step = self.session, self.session.step
        laid_out = shadows.guarded(tensors)
        brick = session.journal.brick(Brick(Kind.KERNEL, kernel))
        about = {"kernel": kernel, "site": call.site, "brick": brick, **_given(call, tensors, laid_out)}
        shadows.launch(call, tensors, laid_out.copy())
        partly = not all(laid_out.whole(place) for place in range(len(tensors)))

        def arrived(host: torch.Tensor) -> None:
            self._checked[kernel] += 1
            self._partly += partly
            touched = [each._asdict() for each in laid_out.touches(host.tolist())]
            self._touched += bool(touched)
            if touched and self._told[kernel] < _MOST_OF_ONE and self._told.total() < _MOST_TOLD:
                self._told[kernel] += 1
                session.fact("canary", {**about, "touched": touched}, step=step, always=True)

        session.readback.read(laid_out.changes(), arrived)

    def _tell(self) -> None:
        checked = self._checked.total()
        self._due = 2 * (checked + self._refused.total())
        fields = {
            "launches": self._heard, "checked": checked, "partly": self._partly, "touched": self._touched,
            "unwritten": self._unwritten,
            "kernels": dict(self._checked.most_common(_MOST_NAMED)), "distinct": len(self._checked),
            "refused": dict(self._refused.most_common(_MOST_NAMED)),
        }  # fmt: skip
        self.session.fact("canaries", fields, always=True)


def _given(call: Call, tensors: Mapping[str, torch.Tensor], laid_out: Guarded) -> dict[str, Any]:
    """What a kernel was given, for whoever asks why it went too far."""
    arguments = [
        {
            "name": name, "slot": laid_out.slot_of(place), "shape": list(tensor.shape), "numel": tensor.numel(),
            "dtype": str(tensor.dtype).removeprefix("torch."), "itemsize": tensor.element_size(),
            "offset": tensor.storage_offset(), "storage": tensor.untyped_storage().nbytes(),
            "whole": laid_out.whole(place),
        }
        for place, (name, tensor) in enumerate(tensors.items())
    ]  # fmt: skip
    sizes, constants = shadows.numbers(call)
    return {"arguments": arguments[:_MOST_NAMED], "sizes": _some(sizes), "constants": _some(constants)}


def _some(numbers: dict[str, int]) -> dict[str, int]:
    return dict(list(numbers.items())[:_MOST_NAMED])
