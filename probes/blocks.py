"""Blocks: how long each one takes, forward and backward, and whether what it puts out is finite.

Enters: calls of the chosen modules of every model, through per-instance hooks. Leaves: block spans,
``activation`` events for outputs that are not finite, ``activation`` samples in sampled steps. On a device the first
block whose output is not finite is told of other steps too, by a ``Lookout``: of every one, or as many as are afforded.

Outputs are checked by one sum each: finite if and only if no element is NaN or Inf, but for sums that
overflow, which the second look sorts out. Backward times come from a hook on the output tensor, which never
changes the gradient. Inside a compiled module nothing is hooked; the compiled module itself is, from outside.
"""

from __future__ import annotations

import math
import re
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn

from brickprof.bricks import Brick, Kind
from brickprof.capture import models, tensors
from brickprof.capture.lookout import Lookout
from brickprof.capture.outputs import Seen
from brickprof.capture.probe import Probe
from brickprof.capture.seats import Handle, around
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.survey import Measured, Row, deliver, measure
from brickprof.capture.tensors import on_host
from brickprof.capture.trace import PHASE
from brickprof.clock import now
from brickprof.records import ROLES

_counter = time.perf_counter_ns
_compiling = torch.compiler.is_compiling
_FORWARD, _EVAL, _RECOMPUTE = PHASE["forward"], PHASE["eval"], PHASE["recompute"]
_ACTIVATION = ROLES.index("activation")
_NAMES = {_FORWARD: "forward", _EVAL: "eval", _RECOMPUTE: "recompute"}
_MOST_REPORTS = 64
_BESIDE = re.compile(r"label|target|mask|position|token_type|weight")
"""Names of what a model is given beside its input."""


class BlocksProbe(Probe):
    name = "blocks"
    ways = ("blocks", "spans", "full")
    every_step = ("step_begin",)
    levels = ("standard", "deep")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._watchers: list[tuple[weakref.ref[nn.Module], _Watcher]] = []
        self._root_watchers: list[tuple[weakref.ref[nn.Module], _Watcher]] = []
        self._handles: list[Any] = []
        self._roots: list[Any] = []
        self._deep = False
        self._reported = 0
        self._broken: dict[int, int] = {}  # when it broke: reported then, and again only after it was whole
        self._sampled: list[tuple[tuple[int, int, int, int], Measured]] = []
        self._device: list[tuple[tuple[int, int, int, str], list[torch.Tensor]]] = []
        self._sampled_backwards = 0
        """Those of the step under way for which blocks were looked at one by one, and that no patrol counts."""
        self._lookout = session.lookout = Lookout(session, self._counted)

    # -- which modules

    def models_found(self) -> None:
        self._choose(every=self._deep)
        self._fit()

    def step_begin(self, step: int) -> None:
        self._reported = 0
        self.session.ran.clear()
        session = self.session
        if session.on.deep is not self._deep:
            self._choose(every=session.on.deep)
        self._fit()

    def _fit(self) -> None:
        """Hooks where something is looked at."""
        session = self.session
        if session.hooks:
            self._hook()
        else:
            # A hook that returns at once still costs: in steps that are not looked at, they are taken out.
            self._unhook(roots=session.by_fetch and not session.looking)

    def compiling(self, module: Any) -> None:
        """A hook in a module that is about to be compiled would be traced: take them out first."""
        self._forget()
        self._lookout.blind()

    def compiled_in_place(self, module: Any) -> None:
        if any(model.root() is module for model in self.session.models):  # it is watched from its first call on
            self._choose(every=self._deep)

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        if not self._root_watchers and self.session.models:
            self._choose(every=self._deep)
        if not self._lookout.patrolling and any(phase == _FORWARD for (_, phase, _, _), _ in self._device):
            self._sampled_backwards += 1

    def loss_broken(self, loss: torch.Tensor) -> None:
        self._lookout.broken(loss)

    def _choose(self, *, every: bool) -> None:
        """Decides which modules are blocks; roots stay hooked, since their calls also begin steps."""
        self._forget()
        self._deep = every
        for model in self.session.models:
            for path, module in models.blocks(model, every=every):
                brick = self.session.journal.brick(Brick(Kind.BLOCK, path, model.name))
                watcher = _Watcher(self, brick, root=not path)
                if path:
                    self._watchers.append((weakref.ref(module), watcher))
                else:
                    self._root_watchers.append((weakref.ref(module), watcher))
        self._roots = _hooked(self._root_watchers)
        if self.session.hooks:
            self._hook()
        if not every:
            self._lookout.choose(self._stacked())

    def _stacked(self) -> Iterator[tuple[int, nn.Module]]:
        for model in self.session.models:
            for path, module in models.blocks(model):
                if path:
                    yield self.session.journal.brick(Brick(Kind.BLOCK, path, model.name)), module

    def _hook(self) -> None:
        if not self._roots:
            self._roots = _hooked(self._root_watchers)
        if not self._handles:
            self._handles = _hooked(self._watchers)

    def _unhook(self, *, roots: bool) -> None:
        if self._handles:
            self._handles = _removed(self._handles)
        if roots and self._roots:
            self._roots = _removed(self._roots)
        elif not roots and not self._roots:
            self._roots = _hooked(self._root_watchers)

    def _forget(self) -> None:
        self._handles, self._roots = _removed(self._handles), _removed(self._roots)
        self._watchers, self._root_watchers = [], []

    def close(self) -> None:
        self._forget()
        self._lookout.blind()

    # -- costs and results

    def step_end(self, step: int) -> None:
        self._read_device(step)
        self._deliver()

    def look(self, brick: int, output: torch.Tensor, inputs: Any, phase: int) -> None:
        """Is the output finite? Now, for a CPU tensor; some steps later for a CUDA one."""
        sum_ = tensors.total(output)
        if on_host(output):
            if math.isfinite(sum_.item()):
                self._broken.pop(brick, None)
            elif brick not in self._broken:
                self._report(brick, output, inputs, phase)
        elif len(self._device) < 4096:
            # Only the sum is kept: holding the output itself would raise the peak of the memory.
            about = (brick, phase, output.numel(), str(output.dtype).removeprefix("torch."))
            given = tensors.first_tensor(inputs) if self.session.on.full or self.session.on.deep else None
            sums = [sum_.float()]
            own = None if given is None else tensors.local(given)  # the sum of a sharded whole is a collective
            if own is not None and tensors.watchable(own) and own.device == output.device:
                sums.append(tensors.total(own.detach()).float())
            self._device.append((about, sums))

    def _report(self, brick: int, output: torch.Tensor, inputs: Any, phase: int) -> None:
        nan, inf, absmax, _ = tensors.exact(output)
        if not (nan or inf) or self._reported >= _MOST_REPORTS:
            return
        self._reported += 1
        self._broken[brick] = self.session.step
        given = tensors.first_tensor(inputs)
        given_finite = None if given is None else bool(torch.isfinite(given.detach()).all())
        fields = {
            "brick": brick,
            "nan": nan,
            "inf": inf,
            "numel": output.numel(),
            "dtype": str(output.dtype).removeprefix("torch."),
            "phase": _NAMES.get(phase, ""),
            "inputs_finite": given_finite,
        }
        self.session.fact("activation", fields, always=True)
        if nan:
            self.session.anomaly("activation", {"brick": brick, "value": absmax})

    def _read_device(self, step: int) -> None:
        looked, self._device = self._device, []
        backwards, self._sampled_backwards = self._sampled_backwards, 0
        if not looked or hands_off():
            return
        self._lookout.sampled(backwards)
        about = [(described, len(sums)) for described, sums in looked]
        sums = torch.stack([sum_ for _, of_block in looked for sum_ in of_block])
        self.session.readback.read(sums, lambda host: self._sums_arrived(step, about, iter(host.tolist())))

    def _sums_arrived(
        self, step: int, about: list[tuple[tuple[int, int, int, str], int]], sums: Iterator[float]
    ) -> None:
        for (brick, phase, numel, dtype), count in about:
            value, *given = [next(sums) for _ in range(count)]
            if math.isfinite(value):
                self._broken.pop(brick, None)
                continue
            if brick in self._broken:
                continue
            self._broken[brick] = step
            fields = {
                "brick": brick, "nan": None, "inf": None, "numel": numel, "dtype": dtype,
                "phase": _NAMES.get(phase, ""), "inputs_finite": math.isfinite(given[0]) if given else None,
            }  # fmt: skip
            self.session.fact("activation", fields, step=step, always=True)
            self.session.anomaly("activation", {"brick": brick, "value": value}, step=step)

    def _counted(self, step: int, micro: int, seen: Sequence[Seen], counts: list[list[int]]) -> None:
        """The outputs of a step that nobody looked at for them have been counted: the first that is broken is told."""
        found = next((each for each in zip(seen, counts, strict=True) if any(each[1])), None)
        if found is None:
            return
        output, (nan, inf) = found
        self._lookout.rest()
        # What stood before the blocks or between two, or in one or another of them, is the model's.
        brick = output.brick or self._whole()
        before = self._broken.get(brick, step + 1)
        if not brick or before < step or (before == step and not output.asked):
            return  # one of a later step may have come home sooner
        self._broken[brick] = step
        fields = {
            "brick": brick, "nan": nan, "inf": inf, "numel": output.numel,
            "dtype": str(output.dtype).removeprefix("torch."), "phase": "forward",
            "inputs_finite": True if output.follows and output.brick else None, "micro": micro,
        }  # fmt: skip
        if output.asked is not None:
            fields |= {"inside": True, "operations": list(output.asked)}
        self.session.fact("activation", fields, step=step, always=True)
        value = math.nan if nan else math.inf
        self.session.anomaly("activation", {"brick": brick, "value": value}, step=step)

    def _whole(self) -> int:
        """The model, where there is one."""
        names = [model.name for model in self.session.models]
        return self.session.journal.brick(Brick(Kind.BLOCK, "", names[0])) if len(names) == 1 else 0

    def sample(self, brick: int, output: torch.Tensor) -> None:
        """Statistics of one output, in sampled steps."""
        session = self.session
        self._sampled.append(((now(), session.step, max(session.steps.backwards, 0), brick), measure([output])))
        if on_host(output):
            self._deliver()  # at once: a measurement of a CPU tensor holds the tensor

    def _deliver(self) -> None:
        sampled, self._sampled = self._sampled, []
        if not sampled or hands_off():
            return
        about = [described for described, _ in sampled]
        journal = self.session.journal

        def arrived(rows: list[Row]) -> None:
            for where, row in zip(about, rows, strict=True):
                journal.sample(
                    (*where, 0, _ACTIVATION, row.numel, row.nan, row.inf, row.absmax, row.l2, row.mean,
                     row.zero_fraction, None, None, None, row.histogram)
                )  # fmt: skip

        deliver([measured for _, measured in sampled], self.session.readback, arrived)


def _hooked(watchers: list[tuple[weakref.ref[nn.Module], _Watcher]]) -> list[Handle]:
    watched = [(module, watcher) for reference, watcher in watchers if (module := reference()) is not None]
    return [handle for module, watcher in watched for handle in around(module, watcher.before, watcher.after)]


def _keywords(frame: FrameType) -> list[torch.Tensor]:
    """What a model is called with by name only (``model(**batch)``), from the frame that calls the hook, torch's or a
    seat's. A hook that asks for it leaves its number in the module, and so in a checkpoint of the whole of it."""
    told = frame.f_locals.get("kwargs")
    named = told.items() if isinstance(told, dict) else ()
    return [value for name, value in named if isinstance(value, torch.Tensor) and not _BESIDE.search(str(name))][:1]


def _given(args: Any) -> weakref.ref[torch.Tensor] | None:
    first = args[0] if args else None
    return weakref.ref(first) if isinstance(first, torch.Tensor) else None


def _removed(handles: list[Any]) -> list[Any]:
    for handle in handles:
        handle.remove()
    return []


class _Watcher:
    """The two hooks of one block."""

    __slots__ = ("_brick", "_ids", "_probe", "_root", "_session")

    def __init__(self, probe: BlocksProbe, brick: int, *, root: bool) -> None:
        self._probe = probe
        self._session = probe.session
        self._brick = brick
        self._root = root
        self._ids: list[tuple[int, int]] = []

    def before(self, _module: Any, args: Any) -> None:
        if _compiling():
            return
        session = self._session
        start = _counter()
        try:
            if threading.get_ident() != session.thread and not session.in_backward:
                return
            if session.in_backward:
                phase = _RECOMPUTE
            elif torch.is_grad_enabled():
                phase = _FORWARD
                if self._root:
                    session.forward_begins()
                    session.fed = _given(args or _keywords(sys._getframe(1)))
                    session.ran.add(id(_module))
            else:
                phase = _EVAL
            if not session.tracing:
                self._ids.append((0, phase))
                return
            self._ids.append((session.trace.open(self._brick, phase), phase))
        except Exception as error:
            session.failed("blocks", error)
        session.charge("blocks", _counter() - start)

    def after(self, _module: Any, args: Any, output: Any) -> None:
        if not self._ids or _compiling():
            return
        start = _counter()
        session = self._session
        try:
            number, phase = self._ids.pop()
            on = session.on
            if number:
                device = _device(output) if session.clock.running else -1
                if self._root and phase == _FORWARD and device >= 0:
                    session.clock.home = device
                session.trace.close(number, write=on.spans or self._root, device=device)
            if phase == _RECOMPUTE:
                session.recomputes += 1
            elif session.hooks and not session.is_off("blocks"):
                self._look(output, args, phase, on)
        except Exception as error:
            session.failed("blocks", error)
        session.charge("blocks", _counter() - start)

    def _look(self, output: Any, args: Any, phase: int, on: Any) -> None:
        found = tensors.first_tensor(output)
        if found is None or hands_off():
            return
        probe, watched = self._probe, None
        if on.blocks or on.full:
            watched = tensors.local(found)
            if not tensors.watchable(watched):
                return
        start = _counter()
        if watched is not None and on.blocks:
            probe.look(self._brick, watched, args, phase)
            start = self._book("blocks", start)
        if watched is not None and on.full and phase == _FORWARD:
            probe.sample(self._brick, watched)
            start = self._book("full", start)
        if on.spans and phase == _FORWARD and found.requires_grad and found.grad_fn is not None:
            found.register_hook(self._mark)
            self._book("spans", start)

    def _book(self, way: str, start: int) -> int:
        stamp = _counter()
        self._session.spend(way, stamp - start)
        return stamp

    def _mark(self, grad: torch.Tensor) -> None:
        if not _compiling():
            try:
                self._session.trace.mark(self._brick, grad.get_device())
            except Exception as error:
                self._session.failed("blocks", error)


def _device(output: Any) -> int:
    """On which CUDA device; -1 where that is not known."""
    found = tensors.first_tensor(output)
    return -1 if found is None else found.get_device()
