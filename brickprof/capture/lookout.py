"""A lookout over block outputs: on a device, which block was the first to put out something that is not finite, exact
in every step that is looked at.

Enters: the blocks of a model and, in steps that are not looked at for them, their outputs and the loss. Leaves: some
steps later, and under the step they were taken in, how many NaN and Inf each output held where the loss was not finite.

Between the end of a forward and its backward autograd holds nearly every output anyway. A light hook on each block
remembers it weakly, so that nothing lives longer for our sake; when the backward begins, one launch counts in those
that are still there, and reads them only where the loss is not finite (see ``brickprof.kernels.nonfinite``).

An output is no evidence of its block once somebody has written into it, put other memory in its place, or made it on
another stream than the one that we read on. What is recomputed inside a backward is not looked at. Compiled and
scripted modules get no hook, and once anything was compiled nobody does: a hook would be traced into the graph.

In a stretch of steps that are only noted (see ``stretch``) what is counted stays on the device until the stretch is
over, so that a look is one launch and nothing else: hooks stay on there, step after step, or, where that does not fit
the budget, in one stretch of so many. A training that has no stretches is looked over in the same way (see
``patrol``), but for the step between two patrols, in which is learnt what they go by. Where neither can be, it is
looked out in every step if that costs next to nothing, every so many steps where it would cost more, and not at all
where even that does not fit the budget; there, and on a host, no hook is left on.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from brickprof.capture import aside, models, tensors
from brickprof.capture.cadence import GROWN
from brickprof.capture.insides import Inside, Insider, Insides, follows
from brickprof.capture.outputs import Output, Seen, gate, left, stream_of
from brickprof.capture.patrol import MOST_NS, MOST_STEPS, Patrol
from brickprof.capture.sentries import Arrived, Sentries
from brickprof.capture.sentry import Glance, Sentry
from brickprof.capture.surroundings import compiled_frames, hands_off, static_outputs
from brickprof.clock import now

if TYPE_CHECKING:
    from brickprof.capture.session import Session

_SHARE = 0.5
"""Of the budget: the host's work of a step for which the device has nothing to do."""
_FIRST = 3
"""Steps before it begins: they are looked at anyway, and what will be compiled is by then."""
_LONGEST = 32
_DEAREST = 16
"""It fits the budget if looking out every so many steps does."""
_YOUNG_NS, _YOUNG_SHARE = 1_000_000, 0.1
"""What a look may take in a young run, where most breaks, or the part of a step that it may, if that is longer: it is
looked out in every step then, on the account of the start."""
_RECKON = 16
_USUAL = 1.25
"""A look takes so many times the quickest one."""
_AROUND = 2.0
"""A hook takes so many times what it takes inside: torch calls a module that has one in a longer way."""
_REST = 1024
"""Steps for which nobody looks out where it does not fit the budget, or there is nothing to see."""
_REPORTED = 64
"""The same after a report: what comes next is broken for the same reason."""
_EMPTY = 32
_MOST_KEPT = 256
_PIECE = "lookout"
_counter = time.perf_counter_ns
_compiling = torch.compiler.is_compiling
_Tensor = torch.Tensor
_weakly = weakref.ref
_grad_on = torch.is_grad_enabled
_transformed: Callable[[], int | None] = torch._C._functorch.maybe_current_level
_thread = threading.get_ident


def on_device(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


class Counts:
    """The kernel, once it is compiled; that takes a second or two and is done aside."""

    def __init__(self) -> None:
        self._ready: dict[int, bool] = {}
        self._made: Any = None
        self._kernel: Any = None
        self.lost = ""
        """Why there is no kernel, nor will be."""

    def __call__(self, gate: torch.Tensor, values: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """(nan, inf) of each, on the device; None while there is no kernel, and where it cannot be compiled."""
        if not self.prepare(gate.get_device()):
            return None
        found: torch.Tensor = self._made(gate, values)
        return found

    def prepare(self, device: int) -> bool:
        """Whether there is a kernel; it is compiled from the first time on that somebody asks."""
        ready = self._ready.get(device)
        if ready is None:
            ready = self._ready[device] = False
            if not aside.run(self._compile, device, name="brickprof-compile"):
                self.lost = "no thread to compile on"
        return ready

    def add(self, gate: torch.Tensor, places: list[int], out: torch.Tensor, at: int) -> None:
        """The same, added to ``out`` from its row ``at`` on, once there is a kernel; ``places`` says of each where it
        lies, and four times its elements plus its kind."""
        self._made.add(gate, places, out, at)

    def settled(self, device: int, tensors: int) -> Callable[..., None] | None:
        """What does the same for so many, given addresses, once it was done."""
        found: Callable[..., None] | None = self._made.settled(device, tensors)
        return found

    def compiled(self, device: int) -> bool:
        return self._ready.get(device, False)

    def readable(self, value: torch.Tensor) -> bool:
        return self._kernel is None or bool(self._kernel.readable(value))

    def _compile(self, device: int) -> None:
        try:
            from brickprof.kernels import nonfinite

            nonfinite.warm(device)
            self._kernel, self._made = nonfinite, nonfinite.NonFinite(heard=False)
            self._ready[device] = True
        except Exception as error:  # no triton, no compiler, a card that is too old
            self.lost = f"{type(error).__name__}: {error}"


class Lookout:
    def __init__(self, session: Session, arrived: Arrived) -> None:
        self.session = session
        self.arrived = arrived
        self.counts: Any = Counts()
        self._posts: list[tuple[weakref.ref[nn.Module], _Post]] = []
        self._handles: list[Any] = []
        self._kept: list[Output] = []
        self._stride = 1
        self._grown_from = 0
        """The step from which on that holds: before, every step is looked at."""
        self.looks = 0
        """Backwards for which outputs were counted, or looked at one by one."""
        self._turns = 0
        self._empty = 0
        """Steps in a row in which nothing was left that could be counted."""
        self._due = _FIRST
        """The step from which on somebody looks out."""
        self._rests_until = 0
        """The one from which on stretches may have a sentry again, which costs less."""
        self._entered = -1
        """The last that has begun, or is about to: what was kept since then is of it."""
        self._blind = self._awaits = self._taken = False
        self._reaches = True
        """Whether what was last looked for inside of compiled code could be seen there."""
        self.insides = Insides(session, lambda value: bool(self.counts.readable(value)))
        """What is known of compiled code, once nobody has a hook any more."""
        self.sentries = Sentries(self)
        self._patrol: Patrol | None = None
        self._patrol_from = 0
        """The step from which on another may stand."""
        self._hooks_ns = 0.0
        self.backwards = self._number = 1
        """In a step, and the number of the last one in its own."""
        self.timing = False
        self.inside_ns = 0

    @property
    def stride(self) -> int:
        """Outputs are looked at in every step that this divides."""
        return self._stride

    @property
    def young(self) -> bool:
        """Whether every step is looked at, on the account of the start."""
        return self.session.step < self._grown_from

    @property
    def hooked(self) -> int:
        """How many modules have a hook just now."""
        return len(self._handles)

    # -- where

    def choose(self, blocks: Iterable[tuple[int, nn.Module]]) -> None:
        """From now on these are the blocks, each with its brick; on a host there are none."""
        was_hooked = bool(self._handles) or self._patrol is not None
        self._unhook()
        if self._patrol is not None:
            self._relieve()
            self._patrol_from = self._entered + 2  # what the next goes by is learnt in the step before it
        self.sentries.forget()
        self.insides.forget()
        chosen = [] if self._blind else [(module, brick) for brick, module in blocks if _takes_hook(module)]
        self._posts = [(weakref.ref(module), _Post(self, brick)) for module, brick in chosen]
        self._await(bool(self._posts) and self.session.step < GROWN)
        if was_hooked:
            self._hook()

    def blind(self) -> None:
        """Something is about to be compiled: no hook may be in its way, nor come or go later."""
        self._blind = True
        self._unhook()
        self._relieve()
        self.sentries.forget()
        self._posts = []
        self._await(False)

    def _hook(self) -> None:
        if compiled_frames():
            self.blind()
        modules = [(module, post) for reference, post in self._posts if (module := reference()) is not None]
        self._handles = [module.register_forward_hook(post.after) for module, post in modules]

    def _unhook(self) -> None:
        handles, self._handles, self._kept = self._handles, [], []
        for handle in handles:
            handle.remove()

    # -- when

    def ahead(self, step: int, most: int, backwards: int = 1) -> int:
        """In how many of the steps behind ``step``, which is over, nobody looks out; up to ``most``. Each has so many
        ``backwards``."""
        if not (self._posts or self._would_look_inside()):
            return most
        if self.sentries.able and self.sentries.longest >= 2 * backwards:
            return min(self.sentries.longest // backwards, most)
        if self._handles:
            return 0
        due = max(self._due, step + 1)
        if due >= self._grown_from:
            due += -due % self._stride
        return min(due - step - 1, most)

    def enter(self, step: int, *, forward_done: bool = False) -> None:
        """A step begins, before its forward or behind it."""
        if not self._posts:
            return
        known, self._entered = step == self._entered, step
        if not (forward_done or known):
            if self._kept:
                self._kept = []
                self._in_vain()
            if self._patrol is not None:
                self._patrol.update()
        may = step >= max(_FIRST, self._rests_until) and not self._seen_anyway()
        patrolled = self._patrolled(step, may=may, known=known, forward_done=forward_done)
        wanted = not patrolled and may and self._meets(step)
        if wanted is not bool(self._handles):
            self._hook() if wanted else self._unhook()

    def _meets(self, step: int) -> bool:
        if step == self._patrol_from - 1:
            return True  # between two patrols, dear or not
        if step < self._due:
            return False
        return step < self._grown_from or not step % self._stride or self.sentries.always  # between two stretches, too

    def _patrolled(self, step: int, *, may: bool, known: bool, forward_done: bool) -> bool:
        """Whether ``step``, which begins, is one of a patrol. What was decided of a step that is ``known`` stays so:
        blocks may have put out something since."""
        if self._patrol is not None:
            if may and not self.session.on.deep and (known or self._patrol.goes_on(step)):
                return True
            self._relieve()
            self._patrol_from = step + 1  # what it goes by is learnt anew in this one
        if not may or known or forward_done or step < self._patrol_from or not self.sentries.able:
            return False
        soon = int(MOST_NS / max(self.session.cadence.typical_ns, 1.0))
        steps = min(self.sentries.longest // self.backwards, MOST_STEPS, max(soon, 2))
        if steps < 2 or self.session.on.deep or self.sentries.stretched:
            return False
        self._patrol_from = step + steps
        if compiled_frames():
            self.blind()
            return False
        self._unhook()
        try:
            self._patrol = self.sentries.appoint(Patrol, self._blocks(), steps, self.backwards, young=self.young)
            return self._patrol is not None and self._patrol.goes_on(step)
        except Exception as error:
            self.failed(error)
            return False

    def _relieve(self) -> None:
        patrol, self._patrol = self._patrol, None
        if patrol is not None:
            self._patrol_from = min(self._patrol_from, self._entered + 1)
            patrol.relieve()

    @property
    def patrolling(self) -> bool:
        """Whether a patrol stands: it counts in sampled steps, too."""
        return self._patrol is not None

    def sampled(self, backwards: int) -> None:
        """For so many, somebody has looked at blocks one by one; of compiled code at its outside, which says less."""
        if self._posts:
            self.looks += backwards

    def differentiated(self, number: int) -> None:
        """A backward, the one of that ``number`` in its step: when the next step has its first, it is known how many
        there are."""
        self.backwards = self._number if number <= self._number else max(self.backwards, number)
        self._number = number

    def _blocks(self) -> list[tuple[nn.Module, int]]:
        return [(module, post.brick) for reference, post in self._posts if (module := reference()) is not None]

    def stretch(self, steps: int, backwards: int = 1) -> Sentry | None:
        """A stretch of ``steps`` begins behind the step that is over, of so many ``backwards`` each: who looks out in
        it, if anybody does."""
        session = self.session
        self.sentries.stretched_until(session.step + steps)
        if session.step + 1 < self._rests_until or self._seen_anyway():
            return None
        if not (self._posts or self._would_look_inside()):
            return None
        self._unhook()
        self._relieve()
        if self.sentries.longest < 2 * backwards:
            return None
        if self._posts and compiled_frames():
            self.blind()
            return None
        kind = Sentry if self._posts else Insider
        try:
            return self.sentries.post(self._blocks(), steps, backwards, young=self.young, kind=kind)
        except Exception as error:
            self.failed(error)
            return None

    def prepare(self, step: int) -> None:
        """The step before ``step`` is over; what is put out from now on is of that one. Never raises."""
        try:
            self.enter(step)
        except Exception as error:
            self.failed(error)

    def _seen_anyway(self) -> bool:
        """Whether outputs are looked at in every step."""
        return self.session.on.blocks and self.session.cadence.stride["blocks"] == 1

    def keep(self, brick: int, args: Any, output: Any) -> None:
        """A block of the model has put out ``output``."""
        session = self.session
        if session.on.blocks or session.backward_depth or not _grad_on() or _thread() != session.thread:
            return
        found = output if type(output) is _Tensor else tensors.first_tensor(output)
        if type(found) is not _Tensor or _transformed() is not None:
            return
        kept, device = self._kept, found.get_device()
        if len(kept) >= _MOST_KEPT:
            kept[:] = [each for each in kept if each[0]() is not None]
            if len(kept) >= _MOST_KEPT:
                return
        given = args[0] if kept and args else None
        follows = type(given) is _Tensor and given.data_ptr() == kept[-1][2]
        kept.append((_weakly(found), found._version, found.data_ptr(), stream_of(device), brick, follows))

    def take(self, glances: Sequence[Glance], versions: Mapping[int, int]) -> None:
        """These were put out for the backward that is about to begin, in what a sentry took to be a step that was over;
        outputs have these ``versions`` when they are put out."""
        try:
            kept: list[Output] = []
            before: Any = None
            for brick, reference, given in glances:
                value = reference()
                if type(value) is not _Tensor or brick not in versions:
                    continue
                at, stream = value.data_ptr(), stream_of(value.get_device())
                kept.append((reference, versions[brick], at, stream, brick, bool(kept) and given is before))
                before = reference
            self._kept, self._taken = kept, True
        except Exception as error:
            self.failed(error)

    def backward(self, losses: Sequence[torch.Tensor]) -> None:
        """A backward begins: counts in the outputs that are still there."""
        if not self._posts:
            self._inside(losses)
        kept, self._kept = self._kept, []
        taken, self._taken = self._taken, False
        if not (kept or self._awaits or self._patrol is not None):
            return
        start = _counter()
        try:
            if self._patrol is not None and losses and on_device(losses[0]):
                self._patrol.differentiates(losses)
            if self._awaits and losses and on_device(losses[0]):
                self._await(not (self.counts.prepare(losses[0].get_device()) or self.counts.lost))
            if not kept:
                return
            if not losses or not on_device(losses[0]) or hands_off():
                self._in_vain()
            elif self._count(kept, losses, not taken):
                self._learn(_counter() - start)
        except Exception as error:
            self.failed(error)

    @property
    def looks_inside(self) -> bool:
        """Whether nothing is hooked, and compiled code can be looked into."""
        return not self._posts and self.insides.any and not (self.counts.lost or self.session.is_off(_PIECE))

    def _would_look_inside(self) -> bool:
        """Whether there is something to see there: a loss of this kind, on a device, and no graph that is replayed."""
        return self._reaches and self.looks_inside

    def _inside(self, losses: Sequence[torch.Tensor]) -> None:
        """A backward begins behind compiled code: counts in what that has kept."""
        session = self.session
        if not self.looks_inside or session.step < self._rests_until or not self._meets(session.step):
            return
        alone = len(losses) == 1 and on_device(losses[0]) and _thread() == session.thread
        self._reaches = alone and not (hands_off() or static_outputs())
        if not self._reaches:
            return
        start = _counter()
        try:
            loss = losses[0]
            device = loss.get_device()
            if not self.counts.prepare(device):
                if self.counts.lost:
                    self._give_up()
                return
            self.sentries.fetch(None)  # of steps before this one
            found = self.insides.outputs(loss, learn=True)
            if not found or any(each.value.get_device() != device for each in found):
                self._in_vain()
                return
            self._empty = 0
            table = self.counts(gate(losses), [each.value for each in found])
            step, micro, arrived, seen = session.step, max(session.steps.backwards - 1, 0), self.arrived, _seen(found)
            self.sentries.learn_number(len(found), device)
            session.readback.read(table, lambda host: arrived(step, micro, seen, host.tolist()))
            self._learn(_counter() - start)
        except Exception as error:
            self.failed(error)

    def broken(self, loss: torch.Tensor) -> None:
        """A loss on a host is not finite, and its backward is about to begin: looks at what compiled code has kept."""
        session = self.session
        if not self.insides.any or session.is_off(_PIECE) or session.step < self._rests_until:
            return
        if hands_off() or _thread() != session.thread:
            return
        try:
            found = self.insides.outputs(loss, learn=True)
            counts: list[list[int]] = []
            for each in found if all(tensors.on_host(each.value) for each in found) else ():
                counts.append([int(torch.isnan(each.value).sum()), int(torch.isinf(each.value).sum())])
                if any(counts[-1]):
                    break
            self.arrived(session.step, max(session.steps.backwards - 1, 0), _seen(found)[: len(counts)], counts)
        except Exception as error:
            self.failed(error)

    def _await(self, awaits: bool) -> None:
        """Until there is a kernel, blocks are looked at one by one; not for longer than a run is young."""
        self._awaits = self.session.cadence.awaited = awaits

    def _in_vain(self) -> None:
        """Outputs were kept, and nothing could be counted in them; again and again, it is not worth the hooks."""
        self._empty += 1
        if self._empty >= _EMPTY:
            self._pause(_REST)
            self._rests_until = self._due

    def _count(self, kept: list[Output], losses: Sequence[torch.Tensor], whole: bool) -> bool:
        """What is not ``whole`` has only outputs in it that were known before: nothing is learnt from it."""
        self.sentries.fetch(None)  # of steps before this one
        device = losses[0].get_device()
        found = left(kept, device, self.counts.readable)
        if found.values:
            self._empty = 0
        else:
            self._in_vain()
        table = self.counts(gate(losses), found.values) if found.values else None
        session = self.session
        if table is None:
            if self.counts.lost:
                self._give_up()
            return False
        step, micro, arrived = session.step, max(session.steps.backwards - 1, 0), self.arrived
        seen = found.seen(kept)
        if whole:
            self.sentries.learn(kept, found, device)
        session.readback.read(table, lambda host: arrived(step, micro, seen, host.tolist()))
        return True

    def rest(self) -> None:
        """The first block is known: what follows is broken for the same reason."""
        self._pause(_REPORTED)
        self._rests_until = self._due

    def _pause(self, steps: int) -> None:
        self._due = self.session.step + steps
        self._unhook()

    def _give_up(self) -> None:
        reason, instead = self.counts.lost[:300], "a sum of each block's output in sampled steps"
        fields = {"operation": "nonfinite", "reason": reason, "instead": instead}
        self.session.fact("fallback", fields, always=True)
        self.blind()

    # -- what it costs

    def _learn(self, spent: int) -> None:
        """The device has next to nothing to do for a finite loss: what counts is the host, and its hooks most."""
        session = self.session
        behind = session.readback.late(now() - int(session.cadence.typical_ns))
        ours = session.backlog.cost(_PIECE, spent, behind=behind, steady=True)
        if self.timing and self.inside_ns:  # not where they were a sentry's
            self._hooks_ns, self.timing = _AROUND * self.inside_ns, False
        if session.step < self._grown_from:
            session.correct(-spent)
            session.charge_start(int(ours + self._hooks_ns))
        else:
            session.correct(int(ours + self._hooks_ns) - spent)
        self.differentiated(session.steps.backwards)
        self._turns += 1
        self.looks += 1
        if self._turns % _RECKON == 1:
            self.timing, self.inside_ns = True, 0
        elif self._turns % _RECKON == 3:
            self._reckon()

    def _reckon(self) -> None:
        cadence = self.session.cadence
        host = self.backwards * (_USUAL * self.session.backlog.quickest(_PIECE) + self._hooks_ns)
        room = _SHARE * cadence.budget * max(cadence.typical_ns, 1.0)
        self._stride = 1
        while self._stride < _LONGEST and host > self._stride * cadence.ease * room:
            self._stride *= 2
        self._grown_from = GROWN if host <= max(_YOUNG_NS, _YOUNG_SHARE * cadence.typical_ns) else 0
        if host > _DEAREST * room and self.session.step >= self._grown_from:
            self._pause(_REST)

    def failed(self, error: Exception) -> None:
        self.session.failed(_PIECE, error)
        if self.session.is_off(_PIECE):
            self.blind()


class _Post:
    """The hook of one block."""

    __slots__ = ("_lookout", "brick")

    def __init__(self, lookout: Lookout, brick: int) -> None:
        self._lookout = lookout
        self.brick = brick

    def after(self, _module: Any, args: Any, output: Any) -> None:
        if _compiling():
            return
        lookout = self._lookout
        start = _counter() if lookout.timing else 0
        try:
            lookout.keep(self.brick, args, output)
        except Exception as error:
            lookout.failed(error)
        if start:
            lookout.inside_ns += _counter() - start


def _seen(found: Sequence[Inside]) -> list[Seen]:
    """Of compiled code: all that comes before is finite, if this is the first that is not."""
    told = zip(found, follows(found), strict=True)
    return [Seen(each.brick, each.value.numel(), each.value.dtype, behind, each.asked) for each, behind in told]


def _takes_hook(module: nn.Module) -> bool:
    # A hook takes a TransformerEncoderLayer off its fast path, evaluations included.
    if isinstance(module, torch.jit.ScriptModule | nn.TransformerEncoderLayer):
        return False
    if any(map(models.compiled, module.modules())):
        return False
    first = next(module.parameters(), None)
    return first is not None and on_device(first)
