"""A capture session: one training process, one rank folder.

Enters: signals from the patches (see ``brickprof.capture.hub``). Leaves: records in the journal, through
the probes. The session knows which step it is, which ways of looking are on, and what everything cost.

It never raises into the training: whatever fails here is counted, written down, and switched off.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from brickprof.bricks import Brick, Kind
from brickprof.capture import graph, models, ranges
from brickprof.capture.backlog import Backlog
from brickprof.capture.book import Book, owned
from brickprof.capture.budgets import Budgets, Declared, Strain
from brickprof.capture.by_hand import ByHand
from brickprof.capture.cadence import EARLIEST, NOTHING, Cadence
from brickprof.capture.census import Census
from brickprof.capture.device_clock import DeviceClock
from brickprof.capture.dispatch import Dispatch
from brickprof.capture.fused import Fused
from brickprof.capture.looked import Looked
from brickprof.capture.models import Model
from brickprof.capture.newcomers import Newcomers
from brickprof.capture.readback import Readback
from brickprof.capture.steps import StepClock
from brickprof.capture.stretch import Passed, Stretches, rate_of
from brickprof.capture.surroundings import hands_off
from brickprof.capture.tally import Tally
from brickprof.capture.trace import PHASE, Trace
from brickprof.clock import OFFSET, now
from brickprof.journal import Journal
from brickprof.pulse import Pulse
from brickprof.records import PHASES
from brickprof.settings import Settings

if TYPE_CHECKING:
    from brickprof.capture.lookout import Lookout
    from brickprof.capture.places import Places
    from brickprof.capture.vigil import InPassing

_LEAP = 2.0
"""How many times the rate of the update before counts as a leap."""
_MOST_RECALLS = 12
_RECALLED = 16
_BRISK_NS = 50_000_000
"""Steps shorter than this are brisk: only sampled ones are traced."""
_PUBLISH_NS = 100_000_000
_READ_BACK_NS = {"light": 3_000_000_000, "standard": 800_000_000, "deep": 400_000_000}
_LONG_PATTERN = 8
_UNFETCHED = 3
"""Steps in a row that begin without a batch, where others did with one: it is not batches that they begin with."""
_counter = time.perf_counter_ns


def _unwilling(_loss: torch.Tensor) -> bool:
    return False


def _nobody(*, force: bool = False) -> None:
    """No hub to tell."""


def _nothing(*_: Any) -> None:
    """Nobody wants to know."""


def _all(_tables: int, spent: int) -> int:
    return spent


def _not_any(*, clips: bool) -> int:
    return 0


def _not_one(_step: int, _most: int, *, clips: bool) -> int:
    return 0


class Session:
    def __init__(self, folder: Path, settings: Settings, about: dict[str, Any]) -> None:
        self.folder = folder
        self.settings = settings
        self.rank = int(about.get("rank", 0))
        self.world_size = int(about.get("world_size", 1))
        self.journal = Journal(folder, max_bytes=settings.max_bytes)
        self.pulse = Pulse(folder)
        self.budgets = Budgets(self._strained, Declared(settings.budgets, self.journal.bricks), self._affords_depth)
        self.clock = DeviceClock(self.journal.span, self._learn_times, self.budgets.of, self.budgets.declared.of)
        self.trace = Trace(self.journal, self.pulse, self.clock)
        self.trace.ranges = ranges.wanted(self.journal.bricks)
        self.steps = StepClock()
        self.cadence = Cadence(settings.level, settings.budget, settings.deep_at, settings.escalation_steps)
        self.on = self.cadence.begin(0)
        self.hooks = True
        """Whether blocks are looked at in this step."""
        self.looking = True
        """Whether anything is looked at in this step."""
        self.turned: Callable[[], None] = _nobody
        """Called when ``looking`` may have changed."""
        self.by_fetch = False
        """Whether steps begin with a batch: then nothing else has to watch for their beginning."""
        self._unfetched = 0
        """How many have begun without, since one was fetched."""
        self.tracing = True
        """Whether bricks are opened and closed in this step: the sampled ones, and all that last."""
        self.keep_loss: Callable[[torch.Tensor], bool] = _unwilling
        """How the loss of a step that nobody looks at is kept; False when it deserves a look."""
        self.losses_passed: Callable[[int, Passed, range], None] = _nothing
        """The same for losses that were noted: the step of the first, what was noted, and which of it they are."""
        self.expecting = False
        """Whether a probe wants to be told of the next backward, also in a step that nobody looks at."""
        self.vigil: Callable[..., None] | None = None
        """Looks at an optimizer's gradients also in a step that nobody looks at, where that costs next to nothing."""
        self.wants: Callable[[Any], bool] = bool
        """Whether there is more to look at in the gradients that an optimizer has applied."""
        self.idle: Callable[..., int] = _not_one
        """How many steps from now on nobody looks at any gradient."""
        self.settle: Callable[..., None] = _nobody
        """Called by whatever comes to the session past the hub: what was only noted is to be dealt with first."""
        self.passes_forward: Callable[[], bool] = bool
        """A model is about to run in a stretch of steps that are only noted: whether that was noted, too."""
        self.pattern = ""
        """What this step has had so far, in steps that nobody looks at: a letter for each signal."""
        self.takes_norms = settings.level != "light"
        """Whether norms that a clip computes are worth the trouble."""
        self.gradients_passed: Callable[[int, Passed, range], None] = _nothing
        """The same for norms that clips have computed, and tables."""
        self.tables_every: Callable[..., int] = _not_any
        """One step of so many that are only noted has a table of its gradients; 0 where none has."""
        self.tables_in_passing: Callable[..., InPassing | None] = _nothing
        """What sends for it."""
        self.tables_cost: Callable[[int, int], int] = _all
        """What so many of them cost that took the host so long."""
        self.judged, self.measured = Tally(), Tally()
        """Steps of which it is known whether the gradients were finite, and those with all statistics of them."""
        self.stretches = Stretches(self)
        self.lookout: Lookout | None = None
        """The same for the outputs of blocks."""
        self.backlog = Backlog()
        self.dispatch = Dispatch(self.fact)
        self.readback = Readback(self.spend, self.journal.date)
        self.readback.beside = 3 if self.takes_norms else 1
        self.fused = Fused(partial(self.fact, always=True))
        self.readback.gather = lambda value: self.fused.gather(value.get_device())
        self.book = Book(self.journal)
        self.census = Census(self.book, partial(self.fact, always=True), self._models_changed)
        self.thread = threading.get_ident()
        self.step = 0
        self.fed: weakref.ref[torch.Tensor] | None = None
        """What a model was last given in a forward with gradients."""
        self.places: Places | None = None
        """Which module an operation stands in, where a probe has found that out."""
        self.gradients_used = False
        """Whether an update was made since the last backward."""
        self.ran: set[int] = set()
        """The ids of the models that ran with gradients in this step, where that was seen."""
        self.in_backward = False
        self.backward_depth = 0
        self.in_optimizer = False
        self.recomputes = 0
        self.updates: dict[int, int] = {}
        self._rates: dict[int, Any] = {}
        self.entered_late = -1
        """The step, if any, that was looked at from its first backward on only."""
        self._trained = 0
        self.closed = False
        self.looks: list[tuple[int, int]] | None = None
        """From when to when signals of the training thread took time, while somebody wants to know: what it launches
        then is ours."""
        self._looked = Looked()
        self._spent = 0
        self._total_spent = 0
        self._ways: dict[str, int] = {}
        self._step_started = _counter()
        self._settled_from = self._grown_from = (self._step_started, 0)
        """When the first steps were over, or those of a young run, and what the thread that writes had used by then."""
        self._publish_at = self._read_back_at = 0
        self.halting = False
        self.by_hand = ByHand(self.book, self.steps)
        self.newcomers = Newcomers(self.book, self.steps)
        self._escalations: dict[bool, tuple[int, int]] = {}
        """By whether something was not finite: how often deep capture was switched on, and when it next may be."""
        self._reason = ("", -1)
        self._notes: set[str] = set()
        self._recalls = 0
        self.journal.warm()
        self._step_brick = self.journal.brick(Brick(Kind.STEP, "step"))
        self.trace.step_id = self.trace.new_id()
        self.fact("run", about, always=True)
        for text in self.dispatch.load(self):
            self.note(text)
        self._looked.add(self._step_started + OFFSET, now())

    # -- writing

    def fact(
        self,
        kind: str,
        fields: dict[str, Any],
        *,
        step: int | None = None,
        always: bool = False,
        wanted: bool | None = None,
    ) -> None:
        """Writes an event, at once, if it is one for ``always`` or the facts of this step are wanted.

        ``wanted`` says so for a fact whose number comes home from a device in a later step than its own.
        """
        if always or (self.on.facts if wanted is None else wanted):
            self.journal.event(kind, self.step if step is None else step, fields)

    def note(self, text: str) -> None:
        """Says something once."""
        if text not in self._notes and len(self._notes) < 100:
            self._notes.add(text)
            self.fact("note", {"text": text}, always=True)

    def anomaly(self, what: str, fields: dict[str, Any], *, step: int | None = None) -> None:
        """Something looks wrong: write it, and look at everything in the next steps, more and more rarely."""
        broken = not math.isfinite(fields.get("value", math.nan))
        times, due = self._escalations.get(broken, (0, 0))
        if self.step < due:
            return
        rest = 10 * max(self.settings.escalation_steps, 1)
        self._escalations[broken] = (times + 1, self.step + rest * 2 ** min(times, 10))
        until = self.step + self.settings.escalation_steps
        self.cadence.escalate(until)
        self._reason = ("anomaly", until)
        if self.step == (step if step is not None else self.step):
            self._look_from_here()
        self.fact("anomaly", {"what": what, "until": until, **fields}, step=step, always=True)

    def _learn_times(self, step: int, step_ns: int, times: list[tuple[int, int, int]]) -> None:
        """What bricks took the device; not in steps in which we kept it waiting ourselves."""
        if self.settings.level == "deep" or (step > self.cadence.deep_until and step not in self.cadence.planned):
            self.budgets.learn(step, step_ns, times)

    def _affords_depth(self) -> bool:
        return self.cadence.affords(self.settings.escalation_steps)

    def _strained(self, strain: Strain) -> None:
        """A brick takes the device a different time in every step, or too long: the next ones are traced in full."""
        until = self.step + self.settings.escalation_steps
        self.cadence.escalate(until)
        self._reason = (strain.reason, until)
        budget, ratio = strain.budget_ns, strain.efficiency
        declared = self.budgets.declared.of(strain.brick, strain.phase) is not None
        fields = {
            "brick": strain.brick, "phase": PHASES[strain.phase], "mean_ns": int(strain.mean_ns),
            "cv": round(strain.cv, 4), "budget_us": None if budget is None else round(budget / 1000, 3),
            "efficiency": None if ratio is None else round(ratio, 4), "reason": strain.reason, "declared": declared,
            "until": until,
        }  # fmt: skip
        self.fact("unsteady", fields, always=True)

    def _look_from_here(self) -> None:
        """Turns on what can still be seen of this step: its gradients and its update, if they are to come.

        Not what is counted from the beginning of a step, and nothing where it has had a backward already.
        """
        if self.in_optimizer or self.gradients_used or self.on.full or self.steps.backwards > 1:
            return
        self.on = replace(self.on, guard=True, full=True)
        self.entered_late = self.step
        self.looking = True
        self.dispatch.begin(self.on)
        self.turned()
        self.emit("alarmed")

    # -- dispatch and costs

    @property
    def hidden(self) -> bool:
        """Whether the device always has something left to do while the host sends for something: no step is longer for
        it."""
        return self.lookout is not None and self.lookout.sentries.hidden

    def emit(self, signal: str, *args: Any) -> None:
        self.dispatch.emit(signal, *args)

    def failed(self, name: str, error: Exception) -> None:
        self.dispatch.failed(name, error)

    def is_off(self, name: str) -> bool:
        return self.dispatch.is_off(name)

    @property
    def costs(self) -> dict[str, int]:
        return self.dispatch.costs

    @property
    def spent(self) -> int:
        """Nanoseconds that looking has taken of the training thread so far."""
        return self._total_spent + self._spent

    def pay(self, spent: int) -> None:
        """Time that a signal took until now, everything included."""
        self._spent += spent
        looks = self.looks  # another thread may take it away meanwhile
        outside = self.tracing and not self.trace.innermost()
        if (outside or looks is not None) and threading.get_ident() == self.thread:
            end = now()
            if looks is not None:
                looks.append((end - spent, end))
            if outside:
                self._looked.add(end - spent, end)

    def correct(self, by: int) -> None:
        """Some time was booked that is not ours, or ours was not."""
        self._spent += by

    def charge_start(self, spent: int) -> None:
        """Ours, but not the step's: what only a young run gets is no measure of what follows."""
        self._total_spent += spent
        self.cadence.excuse(self.step, spent)

    def charge(self, name: str, spent: int) -> None:
        """Pays for work outside any signal (module hooks), and books it on ``name``."""
        self._spent += spent
        self.dispatch.charge(name, spent)

    def charge_apart(self, name: str, spent: int) -> None:
        """Pays for what somebody has asked for whatever it costs: no other look is given up for it."""
        self._total_spent += spent
        self.cadence.set_apart(self.step, spent)
        self.dispatch.charge(name, spent)

    def spend(self, way: str, spent: int) -> None:
        """Says which way of looking (see ``cadence``) took part of the time: the cadence learns from it."""
        self._ways[way] = self._ways.get(way, 0) + spent

    # -- signals that move the step

    def fetch_begin(self, loader: Any) -> None:
        if self.steps.updated:
            self.by_fetch, self._unfetched = True, 0
            if self.looking or not self.pass_on():
                self.steps.fetched()
                self._turn()
        if self.looking:
            self.emit("fetch_begin", loader)

    def _models_changed(self) -> None:
        self.cadence.renew(self.step)
        self.emit("models_found")

    @property
    def models(self) -> list[Model]:
        return self.census.models

    def first_forward(self, module: Any) -> None:
        """A module runs for the first time and no optimizer has been built."""
        self._guarded("models", self.census.want, list(module.parameters()))

    def attend(self) -> None:
        """A state was put back: what the next steps do with it is written down, the first few times."""
        self._recalls += 1
        if self._recalls <= _MOST_RECALLS:
            self.cadence.attend(self.step + _RECALLED)

    def forward_begins(self) -> None:
        """A model is about to run with gradients on."""
        if self.passes_forward():
            return
        if self.steps.activity() or self._updated_by_hand():
            self._turn()

    def _updated_by_hand(self) -> bool:
        return not self.in_optimizer and not hands_off() and self.by_hand.updated()

    def backward_begin(self, losses: Sequence[torch.Tensor], upstream: Any) -> None:
        self.backward_depth += 1
        if self.backward_depth > 1:
            return  # reentrant checkpointing runs a backward inside a backward: it is part of the outer one
        if self._updated_by_hand():
            self._turn()
        if self.steps.backward_begins():
            self._begin_with_backward()
        self.trace.micro = self.steps.backwards - 1
        self.pattern = self.pattern[:_LONG_PATTERN] + "B"  # none that could be noted
        self._trained = self.step + 1
        self.thread = threading.get_ident()  # whoever differentiates is the one that trains
        self.in_backward = True
        self.gradients_used = False
        if self.census.due or not self.models:
            before = self.costs.get("models", 0)
            self._guarded("models", self.census.want_leaves, losses)
            self.cadence.rescan_took(self.costs.get("models", 0) - before)
        if self.newcomers.awaited:
            self._guarded("newcomers", self.newcomers.backward, losses)
        if self.lookout is not None:
            self.lookout.backward(losses)
        self.emit("backward_begin", losses, upstream)
        graph.forget()

    def _begin_with_backward(self) -> None:
        self._unfetched += 1
        lost = self.by_fetch and self._unfetched >= _UNFETCHED
        self.by_fetch = self.by_fetch and not lost
        was_looking = self.looking
        self._turn(backwards=1)
        if lost and not (was_looking or self.looking):
            self.emit("step_begin", self.step)  # those batches were an evaluation's: models are hooked again

    def pass_backward(self, losses: Sequence[torch.Tensor], upstream: Any, plain: bool) -> bool:
        """A backward in a step that nobody looks at; False when there is more to it than one loss. One that is not
        ``plain`` is none that could be noted."""
        start = _counter()
        steps = self.steps
        if upstream is not None or len(losses) != 1 or self.backward_depth or self.census.due or self.expecting:
            return False
        if self.newcomers.awaited:
            return False
        if not steps.plain and not self._passes_on_with_backward():
            return False
        steps.backwards += 1
        if not self.keep_loss(losses[0]):
            steps.backwards -= 1
            return False
        steps.total_backwards += 1
        self.pattern += "b" if plain else "B"
        self._trained = self.step + 1
        self.backward_depth = 1
        if self.lookout is not None:
            self.lookout.backward(losses)
        self._spent += _counter() - start
        return True

    def _passes_on_with_backward(self) -> bool:
        """Where nothing else tells that a step begins: neither a batch nor a model that is seen to run."""
        return self.steps.over and not self.by_fetch and self.pass_on()

    def backward_end(self, losses: Sequence[torch.Tensor], ok: bool) -> None:
        self.backward_depth = max(self.backward_depth - 1, 0)
        if self.backward_depth:
            return
        self.in_backward = False
        if self.looking:
            self.emit("backward_end", losses, ok)
        if not hands_off():
            self.by_hand.mark()

    def optimizer_built(self, optimizer: Any) -> None:
        number = self.book.optimizer(optimizer)
        self.steps.optimizer_built(number)
        self.newcomers.built()
        self._guarded("models", self.census.want, owned(optimizer))
        self.cadence.renew(self.step)
        self.emit("optimizer_built", optimizer)

    def optimizer_begin(self, optimizer: Any) -> None:
        if self.steps.optimizer_begins(self.book.optimizer(optimizer)):
            self._turn(backwards=self.steps.backwards)
        self.in_optimizer = True
        if self.looking:
            self.emit("optimizer_begin", optimizer)

    def pass_fetch(self) -> bool:
        """A batch is asked for and nobody looks, nor will in the step that may begin with it."""
        if self.looking or not self.by_fetch:
            return False
        start = _counter()
        if self.steps.updated:
            if not self.pass_on():
                return False
            self._unfetched = 0
        elif len(self.pattern) < _LONG_PATTERN:
            self.pattern += "f"
        self._spent += _counter() - start
        return True

    def steps_passed(self, number: int, steps: Passed) -> None:
        """Steps were noted in which nobody looked at anything, each with one update, by ``number``: those that are over
        begin and end here, all at once."""
        first, count = self.step + 1, steps.whole
        began = steps.began[steps.backwards(range(count))[-1]]
        wall = self._idled(began, count)
        self.steps.advance_by(number, count, steps.parts)
        self.step = self.trace.step = self.steps.number
        self._trained = self.step + 1
        self.losses_passed(first, steps, range(count))
        if steps.norms or steps.tables:
            self.gradients_passed(first, steps, range(count))
        self.in_optimizer = False
        self.updates[number] = self.updates.get(number, 0) + count
        self.gradients_used = True
        self._rates[number] = steps.rates[-1]
        if self.lookout is not None:
            self.lookout.prepare(self.step + 1)
        self._rest(wall // count, began)

    def begun(self, steps: Passed, backwards: int) -> None:
        """The last step was noted as far as it got: so many ``backwards``."""
        last = range(steps.whole, steps.whole + 1)
        self.steps.backwards += backwards
        self.steps.total_backwards += backwards
        self.pattern += backwards * "b"
        self._trained = self.step + 1
        self.losses_passed(self.step, steps, last)
        clipped = len(steps.norms) > steps.whole
        if clipped:
            self.pattern += "c"
        if clipped or steps.whole in steps.tables:
            self.gradients_passed(self.step, steps, last)

    def pass_update(self, optimizer: Any) -> bool:
        """An update in a step that nobody looks at, one of its own."""
        start = _counter()
        number = self.book.optimizer(optimizer)
        if self.looking or not self.steps.lone(number):
            return False
        self.pattern += "u"
        self.in_optimizer = False
        self.updates[number] = self.updates.get(number, 0) + 1
        self.gradients_used = True
        if self._rate_leapt(number, rate_of(optimizer)):
            self.emit("rate_leapt", optimizer)
        self._stepped(optimizer, number)
        self._spent += _counter() - start
        return True

    def optimizer_end(self, optimizer: Any) -> None:
        self.in_optimizer = False
        number = self.book.optimizer(optimizer)
        if not self.looking and self.steps.optimizer_begins(number):
            self._turn(backwards=self.steps.backwards)
        self.updates[number] = self.updates.get(number, 0) + 1
        self.gradients_used = True
        leapt = self._rate_leapt(number, rate_of(optimizer))
        if self.looking:
            self.emit("optimizer_end", optimizer)
        elif leapt:
            self.emit("rate_leapt", optimizer)
        self._stepped(optimizer, number)

    def _stepped(self, optimizer: Any, number: int) -> None:
        if number in self.steps.joining:
            self._guarded("newcomers", self.newcomers.updates, optimizer, number)
        self.steps.optimizer_stepped(number)
        self._look_ahead()

    def _rate_leapt(self, number: int, rate: Any) -> bool:
        last = self._rates.get(number)
        if rate is last:
            return False
        self._rates[number] = rate
        return type(rate) is float and type(last) is float and rate > _LEAP * last

    def scaling(self, scaler: Any, loss: Any) -> None:
        self.emit("scaling", scaler, loss)

    def unscale_begin(self, scaler: Any, optimizer: Any) -> None:
        self.emit("unscale_begin", scaler, optimizer)

    def scaler_step(self, scaler: Any, optimizer: Any) -> None:
        self.emit("scaler_step", scaler, optimizer)
        self._stepped(optimizer, self.book.optimizer(optimizer))

    # -- steps

    def _turn(self, backwards: int = 0) -> None:
        """One step ends, the next begins."""
        stamp = _counter()
        wall, self._step_started = stamp - self._step_started, stamp
        was_looking = self.looking
        self._leave(wall)
        self.steps.backwards = backwards
        self._enter(self.steps.number)
        self._publish(wall, stamp)
        if self.looking or was_looking:
            self.emit("step_begin", self.step)
            self.turned()
        if self.tracing:  # the signal that began the step may go on, and open a brick
            self._looked.add(stamp + OFFSET, now())

    def pass_on(self, passed: int = 0) -> bool:
        """From a step that nobody looks at to the next such step: the least that has to be done. ``passed`` is when
        that was, if it has happened already."""
        steps = self.steps
        if not passed and not self.cadence.quiet(steps.number + 1):
            return False
        stamp = passed or _counter()
        wall = self._idled(stamp)
        steps.advance()
        self.step = self.trace.step = steps.number
        self.pattern = "f"
        if self.lookout is not None:
            self.lookout.enter(self.step)
        self._rest(wall, stamp)
        return True

    def _idled(self, stamp: int, count: int = 1) -> int:
        """Nobody looked at anything from the beginning of this step on until that of another, ``count`` steps later:
        how long that was."""
        wall, self._step_started = stamp - self._step_started, stamp
        spent, self._spent = self._spent, 0
        self._total_spent += spent
        self.cadence.idled(wall, spent, count)
        return wall

    def _look_ahead(self) -> None:
        """An update was made. Where the next step begins with nothing but its backward, that is too late to look
        out."""
        if self.lookout is not None and self.steps.over:
            self.lookout.prepare(self.step + 1)

    def _rest(self, wall: int, stamp: int) -> None:
        """What has to be done now and then, be it between steps that nobody looks at."""
        self._read_back(stamp)
        if stamp >= self._publish_at:
            self._publish(wall, stamp)

    def _leave(self, wall: int) -> None:
        spent, self._spent = self._spent, 0
        if self.looking:
            self.emit("step_end", self.step)
            spent = self._learn_costs(wall, spent)
            self._write_step_span(wall, spent, self._step_started + OFFSET)
            self.trace.step_over()
        self._total_spent += spent
        self._read_back(self._step_started)
        if not self.looking:
            self.cadence.idled(wall, spent)
        elif self.cadence.end(self.step, wall, spent):
            self._report_cadence("budget")

    def _enter(self, step: int) -> None:
        self.step = self.trace.step = step
        self.pattern = ""
        if not self.cadence.grown:
            self._grown_from = (self._step_started, self.journal.written_ns)
            self._settled_from = self._grown_from if step <= EARLIEST else self._settled_from
        on = self.on = self.cadence.begin(step)
        if self.cadence.rescans(step):
            self._guarded("models", self.census.rescan)
        self.looking = on is not NOTHING
        if self.lookout is not None:
            self.lookout.enter(step, forward_done=self.steps.backwards > 0)
        self._guarded("clock", self.clock.begin, on.spans)
        if not self.looking:
            self.hooks = self.tracing = False
            self.trace.step_id = 0
            self.dispatch.begin(on)
            return
        self.hooks = on.blocks or on.spans or on.full
        brisk = self.cadence.typical_ns < _BRISK_NS and not on.deep
        self.tracing = on.spans or on.full or not brisk
        self.dispatch.begin(on)
        self.trace.step_id = self.trace.new_id() if self.tracing else 0
        if self.tracing:
            self.trace.reset()

    def _publish(self, wall: int, stamp: int) -> None:
        """Tells the supervisor, at once of a step that is looked at, else a few times a second."""
        if not self.looking and stamp < self._publish_at:
            return
        self._publish_at = stamp + _PUBLISH_NS
        pulse = self.pulse
        if pulse.asked_to_halt and not self.halting:
            self._halt()
        pulse.step, pulse.step_ns, pulse.overhead = self.step, wall, self.cadence.overhead
        if not self.journal.alive:
            pulse.state = 1
        pulse.beat(now())

    def _halt(self) -> None:
        """The user had asked for it (``--halt-on``): the script is interrupted between two steps, as by Ctrl-C."""
        self.halting = True
        self.fact("halt", {"signal": "SIGINT"}, always=True)
        self.journal.flush()
        os.kill(os.getpid(), signal.SIGINT)

    def _read_back(self, stamp: int) -> None:
        """Fetches what came from a device: after a step that is looked at, else some steps' numbers together."""
        readback = self.readback
        if not (readback.ripe or (readback.busy and (self.looking or stamp >= self._read_back_at))):
            return
        self._read_back_at = stamp + _READ_BACK_NS[self.settings.level]
        try:
            readback.send()
            readback.poll()
        except Exception as error:
            self.failed("readback", error)

    def _learn_costs(self, wall: int, spent: int) -> int:
        """What of ``spent`` was our own, in a step that was looked at."""
        ways, self._ways = self._ways, {}
        if self.on.deep or not self.step or self.step <= self.cadence.deep_until:
            return spent
        # What no way was charged with (signals, hooks, events) belongs to the one that the step was looked at for.
        rest = max(spent - sum(ways.values()) - self.cadence.idle_ns, 0.0)
        on = self.on
        owner = (
            "facts" if on.facts else "spans" if on.spans else "blocks" if on.blocks else "guard" if on.guard else "full"
        )
        ways[owner] = ways.get(owner, 0) + int(rest)
        behind, held_up = self.readback.late(now() - wall), 0.0
        for way, ns in ways.items():
            ours = self.backlog.cost(way, ns, behind=behind)
            held_up += ns - ours
            self.cadence.measured(way, ours)
        return int(max(spent - held_up, 0))

    def _write_step_span(self, wall: int, spent: int, end: int) -> None:
        """``end``: when the step was over, which is before the probes looked back at it."""
        if self.tracing:
            told = f'{{"looking_ns":{spent},"looks":{self._looked.told(end - wall, end)}{self._why()}}}'
            row = (self.trace.step_id, 0, self._step_brick, PHASE["step"], self.step, 0, end - wall, end,
                   None, None, told)  # fmt: skip
            self.trace.write(row, self.clock.first)

    def _why(self) -> str:
        """Why this step was traced in full, where it was one of few."""
        reason, until = self._reason
        if self.step > until:
            reason = "manual" if self.step in self.cadence.planned else ""
        return f',"escalated":"{reason}"' if reason and self.on.deep else ""

    def _report_cadence(self, reason: str) -> None:
        fields = {**self.cadence.stride, "overhead": round(self.cadence.overhead, 5), "reason": reason}
        self.fact("cadence", fields, always=True)

    def _settled_costs(self) -> dict[str, float]:
        """What the first steps cost in all, and the later ones as a share of the step. What the thread that writes has
        used counts in full: no other thread of the interpreter gets on meanwhile."""
        settled = self.cadence.settled
        if settled is None:
            return {}
        share, spent, grown = settled
        since, before = self._grown_from if grown else self._settled_from
        first = self.spent - spent
        writing = (self.journal.written_ns - before) / max(_counter() - since, 1)
        return {"first_seconds": round(max(first, 0.0) / 1e9, 3), "settled_overhead": round(share + writing, 6)}

    def compiling(self, module: Any) -> None:
        self.census.stop_waiting()
        self.emit("compiling", module)
        self.census.due = self.census.wrapped = True

    def compiling_code(self) -> None:
        """A function is handed to torch.compile, and may call a model."""
        if self.lookout is not None:
            self.lookout.blind()

    def watched(self) -> list[torch.Tensor]:
        """Trainable tensors that take part, whoever updates them."""
        return self.book.trainable()

    # -- the end

    def _guarded(self, name: str, function: Any, *args: Any) -> None:
        start = _counter()
        try:
            function(*args)
        except Exception as error:
            self.failed(name, error)
        self.charge(name, _counter() - start)

    def exception(self, fields: dict[str, Any], error: BaseException) -> None:
        """Journals the exception that ended the training, with the brick it came out of."""
        self.settle(force=True)
        passed = models.passed_through(self.models, error)
        brick = self.journal.brick(Brick(Kind.BLOCK, *passed)) if passed is not None else self.trace.innermost()
        if brick:
            fields = {**fields, "brick": brick}
        self.fact("exception", fields, always=True)

    def close(self) -> None:
        """Flushes what is left. The training is over, or goes on without us."""
        if self.closed:
            return
        self.settle(force=True)
        self.closed = True
        if self.lookout is not None:
            self.lookout.blind()
        self.emit("step_end", self.step)
        with contextlib.suppress(Exception):
            self.readback.send()
            self.readback.drain(1.0)
        self.census.stop_waiting()
        self.emit("close")
        with contextlib.suppress(Exception):
            end = now()
            self._write_step_span(end - OFFSET - self._step_started, self._spent, end)
            self.trace.step_over(last=True)
            self.clock.resolve(last=True)
        with contextlib.suppress(Exception):
            self._tell_the_end()
        with contextlib.suppress(Exception):
            self.pulse.state = 1 if not self.journal.alive else 2
            self.pulse.beat(now())
        for file in (self.journal, self.pulse):
            with contextlib.suppress(Exception):
                file.close()

    def _tell_the_end(self) -> None:
        fields = {
            "steps": self._trained,
            "updates": self.steps.updates,
            "costs": dict(sorted(self.costs.items(), key=lambda item: -item[1])),
            "overhead": round(self.cadence.overhead, 6),
            "spent_seconds": round(self.spent / 1e9, 3),
            "written_seconds": round(self.journal.written_ns / 1e9, 3),
            **self._settled_costs(),
            "dropped": {**self.journal.dropped, "readback": self.readback.dropped},
            "recomputes": self.recomputes,
            "judged": self.judged.count,
            "measured": self.measured.count,
            "looked_out": self.lookout.looks if self.lookout is not None else 0,
        }
        self.fact("exit", fields, always=True)
