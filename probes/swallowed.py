"""Swallowed: exceptions that the user's own code raises in a forward, and that nobody hears of.

Enters: three early sampled steps, from the beginning of a model's forward to the beginning of the backward. Leaves: a
``swallowed`` event for each: what was raised in frames of the user's files although the training went on, where, in
which module, how often, and how often the function it was raised in was called.

Seen through ``sys.settrace``, in the training thread and for that time only. Nothing is done where somebody else
traces (a debugger, coverage), and nothing where anything was compiled. Exceptions that ordinary code uses to ask a
question (the end of an iteration, a missing key or attribute) are left out.
"""

from __future__ import annotations

import builtins
import os
import sys
import sysconfig
import threading
import time
from collections import Counter
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
from torch import nn

from brickprof.bricks import Brick, Kind
from brickprof.capture import models, sites
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session

Place = tuple[str, str]
"""The path of a module, and the name of its model."""
Raised = tuple[type[BaseException], BaseException | None, TracebackType | None]

_MOST_LOOKS = 3
_MOST_TRIES = 6
_MOST_CALLS = 100_000
_MOST_SITES = 16
_MOST_LETTERS = 300
_CALL_NS = 1500
"""What one traced call costs, about: the clock in each of them would cost as much again."""
_QUESTIONS = (StopIteration, StopAsyncIteration, AttributeError, KeyError)
_LIBRARIES = tuple(
    {path + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_BACKWARD = Session.backward_begin.__code__
_compiling = torch.compiler.is_compiling
_counter = time.perf_counter_ns
_known: dict[str, bool] = {}


def own(name: str) -> bool:
    """Whether the file ``name`` is the user's own: of no library, and not made up while running."""
    found = _known.get(name)
    if found is None:
        foreign = name.startswith(("<", *_LIBRARIES)) or any(folder in name for folder in _PACKAGES)
        found = _known[name] = sites.users(name) and not foreign
    return found


@dataclass(slots=True)
class _Site:
    """One line that raised, in one module."""

    cls: type[BaseException]
    message: str
    at: str
    code: CodeType
    place: Place | None
    raised_in: str
    times: int = 0


class Tracer:
    """The two trace functions of one look, and what they noted. They change nothing and never raise."""

    def __init__(self, places: dict[int, Place]) -> None:
        self.calls = 0
        self.over = False
        self.found: dict[tuple[Any, ...], _Site] = {}
        self.entries: Counter[tuple[CodeType, Place | None]] = Counter()
        self._places = places
        self._owners: dict[int, Place | None] = {}
        """By the id of a traced frame that runs: the module whose work it does."""
        self._global, self._local = self._entered, self._happened

    def start(self) -> None:
        sys.settrace(self._global)

    def stop(self) -> None:
        """Takes the trace function out, unless it is somebody else's by now, and out of the frames that still run."""
        self.over = True
        if sys.gettrace() is self._global:
            sys.settrace(None)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_trace is self._local:
                frame.f_trace, frame.f_trace_lines = None, True
            frame = frame.f_back
        self._owners.clear()
        self._places = {}

    def _entered(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            if self.over or frame.f_code is _BACKWARD:
                # Stopped from another thread, which cannot take it out of this one; or all that comes is our own work.
                if sys.gettrace() is self._global:
                    sys.settrace(None)
                return None
            self.calls += 1
            if self.calls > _MOST_CALLS:
                self.stop()
                return None
            if not own(frame.f_code.co_filename):
                return None
            place = self._owners[id(frame)] = self._owner(frame)
            self.entries[frame.f_code, place] += 1
            frame.f_trace_lines = False
            return self._local
        except Exception:
            return None

    def _owner(self, frame: FrameType) -> Place | None:
        """The module whose method this is; else the one from whose method it was called.

        Only the locals of the frame that is being entered are asked for. Before Python 3.13 those of an outer one
        would be written back at its next event, with the values that they have now.
        """
        found = self._places.get(id(frame.f_locals.get("self")))
        outer = frame.f_back
        while found is None and outer is not None:
            if outer.f_trace is self._local:
                return self._owners.get(id(outer))
            outer = outer.f_back
        return found

    def _happened(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.over:
            return None
        if event == "exception":
            try:
                self._note(frame, arg)
            except Exception:
                return self._local
        return self._local

    def _note(self, frame: FrameType, raised: Raised) -> None:
        cls, value, trace = raised
        if not issubclass(cls, Exception) or issubclass(cls, _QUESTIONS):
            return
        innermost = frame
        while trace is not None and (trace := trace.tb_next) is not None:
            innermost = trace.tb_frame
            if own(innermost.f_code.co_filename):
                return  # noted where it came from
        place = self._owners.get(id(frame))
        key = (cls, frame.f_code, frame.f_lineno, place)
        site = self.found.get(key)
        if site is None:
            if len(self.found) >= _MOST_SITES:
                return
            module = str(innermost.f_globals.get("__name__") or "")
            site = self.found[key] = _Site(cls, _message(value), sites.line(frame), frame.f_code, place, module)
        site.times += 1


def _message(error: BaseException | None) -> str:
    """What the exception says, from plain values only: a tensor would be read to be printed."""
    said = [str(each) for each in getattr(error, "args", ()) if isinstance(each, (str, int, float))]
    return " ".join(" ".join(said).split())[:_MOST_LETTERS]


def _ancestor(cls: type[BaseException]) -> str:
    """The nearest class of Python's own."""
    return next((each.__name__ for each in cls.__mro__ if getattr(builtins, each.__name__, None) is each), "Exception")


class SwallowedProbe(Probe):
    name = "swallowed"
    ways = ("full",)
    levels = ("standard", "deep")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._handles: list[Any] = []
        self._tracer: Tracer | None = None
        self._looks = self._tries = 0
        self._frames = _frames()
        """What had been compiled in this process before the training began has its graph already."""
        self._tried = 0
        """The step that was last looked at, or tried to be. Never the first one: whatever warms up does so there."""
        self._opened = 0

    # -- when

    def step_begin(self, step: int) -> None:
        if self._handles:  # once more, behind the hooks that turn the step
            self._hook()

    def models_found(self) -> None:
        if self._handles:
            self._hook()

    def compiling(self, module: Any) -> None:
        self._give_up()

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        self._finish(went_on=True)
        if self._wanted() and not self._handles:
            self._hook()

    def step_end(self, step: int) -> None:
        self._finish(went_on=False)

    def close(self) -> None:
        self._give_up()

    def _wanted(self) -> bool:
        return self._looks < _MOST_LOOKS and self._tries < _MOST_TRIES

    def _hook(self) -> None:
        self._unhook()
        roots = [root for model in self.session.models if (root := model.root()) is not None]
        if not self._wanted() or _frames() > self._frames or _compiled(roots):
            self._give_up()
            return
        self._handles = [root.register_forward_pre_hook(_Begin(self).runs) for root in roots]

    def _unhook(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def _give_up(self) -> None:
        self._unhook()
        self._finish(went_on=False)
        self._tries = _MOST_TRIES

    # -- one look

    def begin(self) -> None:
        """A model's forward begins."""
        session = self.session
        if session.is_off(self.name) or not self._wanted():
            self._give_up()
            return
        if self._tracer is not None or self._tried >= session.step or not session.on.full:
            return
        if session.in_backward or session.in_optimizer or not torch.is_grad_enabled():
            return
        if sys.gettrace() is not None or threading.get_ident() != session.thread:
            return
        start = _counter()
        self._tried = session.step
        self._tries += 1
        self._tracer = Tracer(_places(session.models))
        self._opened = _counter() - start
        self._tracer.start()

    def _finish(self, *, went_on: bool) -> None:
        tracer, self._tracer = self._tracer, None
        if tracer is None:
            return
        whole = not tracer.over
        tracer.stop()
        session = self.session
        spent = self._opened + _CALL_NS * tracer.calls
        session.charge(self.name, spent)
        session.spend("full", spent)
        if went_on and whole:
            self._looks += 1
            session.fact("swallowed", self._told(tracer), wanted=True)
        if not self._wanted():
            self._unhook()

    def _told(self, tracer: Tracer) -> dict[str, Any]:
        journal = self.session.journal
        rows = [
            {
                "type": site.cls.__name__,
                "kind": _ancestor(site.cls),
                "message": site.message,
                "at": site.at,
                "function": site.code.co_name,
                "raised_in": site.raised_in,
                "brick": None if site.place is None else journal.brick(Brick(Kind.BLOCK, *site.place)),
                "times": site.times,
                "calls": tracer.entries[site.code, site.place],
            }
            for site in tracer.found.values()
        ]
        return {"traced": tracer.calls, "sites": rows}


class _Begin:
    """The hook on one root."""

    __slots__ = ("_probe",)

    def __init__(self, probe: SwallowedProbe) -> None:
        self._probe = probe

    def runs(self, module: nn.Module, args: Any) -> None:
        if _compiling():
            return
        try:
            self._probe.begin()
        except Exception as error:
            self._probe.session.failed("swallowed", error)


def _places(watched: list[models.Model]) -> dict[int, Place]:
    return {
        id(module): (model.path(raw), model.name)
        for model in watched
        if (root := model.root()) is not None
        for raw, module in root.named_modules()
    }


def _frames() -> int:
    """How many frames torch.compile has looked at in this process."""
    return int(getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0))


def _compiled(roots: list[nn.Module]) -> bool:
    """Whether hooks would be traced into a graph."""
    return any(models.compiled(module) for root in roots for module in root.modules())
