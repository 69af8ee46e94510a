"""Inside compiled code: what it has kept for its backward tells which block was the first to put out something that is
not finite.

Enters: a loss whose backward is about to begin. Leaves: some of the tensors that compiled code has kept on the way to
it, about one for each block, in the order of the forward, each with the block to blame if it is not finite and all
those before it are (see ``blame``).

Nothing is hooked, compiled or kept alive: autograd holds these tensors anyway. What each of them is was read off the
graph that the code was made of, when it was compiled or taken from a cache (see ``forward``). Where one piece of the
way is not known, nothing is said of the others.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from brickprof.bricks import Brick, Kind
from brickprof.capture import blame, graph, models
from brickprof.capture.blame import NOBODY
from brickprof.capture.forward import Forward, Node
from brickprof.capture.sentry import Found, Sentry
from brickprof.capture.surroundings import saved_by_others
from brickprof.capture.taps.forward_graphs import Known, known
from brickprof.operators.launch import KIND

if TYPE_CHECKING:
    from brickprof.capture.session import Session

_MOST_FUNCTIONS = 256
"""On the way from a loss: beyond, most of a model is not compiled, and it is too long."""
_MOST_TENSORS, _MOST_ROUTES, _MOST_ASKED = 256, 16, 4
_MOST_SCALES = 2
"""How often a loss may be divided before its backward."""
_LEAF = "AccumulateGrad"
_SELF = "self"
"""Where a graph begins that was made of a module's own code: what is in no module inside it is in that one."""
_AFTER = 1 << 30
"""What a function has put out comes after all that it has kept."""


Asked = tuple[str, ...]
"""Operations that have no finite result of some values, as ``log in model.py:12``."""


class Kept(NamedTuple):
    place: int
    brick: int
    """Below 0, in the place of a block: whoever has made what the code was given, as its input ``~brick``."""
    asked: Asked
    """Which of them stand between this and what was kept before."""


class Plan(NamedTuple):
    """What to look at of what one compiled function has kept."""

    saved: int
    """Tensors, in all."""
    kept: tuple[Kept, ...]
    tail: int
    """The brick to blame where all of these are finite and what it puts out is not."""
    asked: Asked
    """The same of what comes after them."""
    leads: tuple[int, ...]
    """Inputs that somebody has computed, by their places."""
    own: bool
    """Whether it is a module's own code, and all that is in no module inside of it is that module's."""


class _Stop(NamedTuple):
    """A function on the way, compiled if it has a plan."""

    function: Any
    plan: Plan | None
    mark: Any
    """The same for the same function of another step."""


class _Pick(NamedTuple):
    """A tensor on the way: what the function at this stop has saved, by its place, or by name and place; the loss
    itself, if it has put out that (place -1)."""

    stop: int
    name: str
    place: int
    brick: int
    asked: Asked


class Inside(NamedTuple):
    """What is looked at, and whom to blame."""

    brick: int
    value: torch.Tensor
    asked: Asked


class _Found(NamedTuple):
    order: tuple[int, int]
    stop: int
    name: str
    place: int
    maker: Any
    """Whoever has put it out, if that is who is to blame."""
    brick: int
    asked: Asked


class Insides:
    def __init__(self, session: Session, readable: Callable[[torch.Tensor], bool]) -> None:
        self._session = session
        self._readable = readable
        self._plans: dict[int, tuple[int, dict[int, Plan | None]]] = {}
        """By the number of a compiled function: which of its inputs is a leaf, and plans by the id of that."""
        self._routes: dict[tuple[Any, ...], tuple[_Pick, ...]] = {}

    def forget(self) -> None:
        """Models or blocks are others."""
        self._plans.clear()
        self._routes.clear()

    @property
    def any(self) -> bool:
        """Whether any compiled code can be looked into."""
        return bool(known) and not saved_by_others()

    def outputs(self, loss: torch.Tensor, *, learn: bool) -> list[Inside]:
        """What to look at; ``learn``: whether there is time to look at anything for the first time."""
        way = self._way(loss.grad_fn, learn)
        if way is None or saved_by_others():
            return []
        marks = tuple(stop.mark for stop in way)
        picks = self._routes.get(marks)
        if picks is None and learn and len(self._routes) < _MOST_ROUTES:
            picks = self._routes[marks] = self._routed(way, loss)
        found: list[Inside] = []
        saved: dict[int, Sequence[torch.Tensor]] = {}
        for stop, name, place, brick, asked in picks or ():
            function, plan, _ = way[stop]
            if plan is None:
                value = getattr(function, name)
                value = value[place] if place >= 0 else value
            elif place < 0:
                if _made_by(loss) is not function:  # it was scaled since
                    continue
                value = loss
            else:
                if stop not in saved:
                    saved[stop] = _saved(function)
                    if len(saved[stop]) != plan.saved:
                        return []
                value = saved[stop][place]
            found.append(Inside(brick, value, asked))
        return found

    # -- the way

    def _way(self, start: Any, learn: bool) -> list[_Stop] | None:
        """The functions behind a loss, in the order of the forward; None where nobody knows one of them."""
        waiting, seen = [start], {start}
        way: list[_Stop] = []
        while waiting:
            function = waiting.pop()
            number = _number(function)
            plan = self._only(number) if number >= 0 and not learn else None
            following = function.next_functions if plan is None else ()
            if number >= 0 and plan is None:
                plan = self._plan(function, number, following, learn)
                if plan is None:
                    return None
                following = [following[place] for place in plan.leads]
            leaves = []
            for each, _ in following:
                if each is None or each in seen:
                    continue
                if type(each).__name__ == _LEAF:
                    leaves.append(id(each.variable))
                    continue
                seen.add(each)
                waiting.append(each)
            way.append(_Stop(function, plan, (type(function), *leaves) if plan is None else id(plan)))
            if len(seen) > _MOST_FUNCTIONS:
                return None
        way.sort(key=lambda stop: graph.order(stop.function))
        return way if any(stop.plan is not None for stop in way) else None

    def _routed(self, way: Sequence[_Stop], loss: torch.Tensor) -> tuple[_Pick, ...]:
        """What to look at on such a way."""
        bricks, proven = _Parts(self._session), set[Any]()
        plans = {stop.function: stop.plan for stop in way if stop.plan is not None}
        picks, met = [], set[tuple[Any, int]]()
        for _, stop, name, place, maker, brick, asked in sorted(self._all(way, met), key=lambda each: each.order):
            if maker is not None:
                brick = bricks.behind(maker, proven, {each: plan.tail for each, plan in plans.items()})
                asked = plans[maker].asked if maker in plans else ()
                proven.add(maker)
            picks.append(_Pick(stop, name, place, brick, asked))
        last = _made_by(loss)
        own = plans.get(last)
        if own is not None and own.own and self._readable(loss):
            at = next(at for at, stop in enumerate(way) if stop.function is last)
            picks.append(_Pick(at, "", -1, own.tail, own.asked))
        enough = 0 < len(picks) <= _MOST_TENSORS and any(pick.brick or pick.asked for pick in picks)
        return tuple(picks) if enough else ()

    def _all(self, way: Sequence[_Stop], met: set[tuple[Any, int]]) -> Iterator[_Found]:
        for at, (function, plan, _) in enumerate(way):
            for number, (place, brick, asked) in enumerate(plan.kept if plan is not None else ()):
                if brick >= 0:
                    yield _Found((graph.order(function), number), at, "", place, None, brick, asked)
                else:
                    maker, output = function.next_functions[~brick]
                    yield from self._made(maker, output, at, "", place, met)
            for name, place, value in graph.saved_places(function) if plan is None else ():
                if self._readable(value) and value.is_floating_point():
                    yield from self._made(value.grad_fn, value.output_nr, at, name, place, met)

    def _made(
        self, maker: Any, output: int, at: int, name: str, place: int, met: set[tuple[Any, int]]
    ) -> Iterator[_Found]:
        """What some function has put out, once."""
        if maker is not None and (maker, output) not in met:
            met.add((maker, output))
            yield _Found((graph.order(maker), _AFTER), at, name, place, maker, NOBODY, ())

    # -- compiled functions

    def _only(self, number: int) -> Plan | None:
        """The plan of code that one model alone runs, from its beginning: whose it is need not be asked."""
        _, plans = self._plans.get(number, (-1, {}))
        plan = next(iter(plans.values())) if len(plans) == 1 else None
        return plan if plan is not None and not plan.leads else None

    def _plan(self, function: Any, number: int, following: Sequence[Any], learn: bool) -> Plan | None:
        leaf, plans = self._plans.get(number, (-1, {}))
        whose = id(following[leaf][0].variable) if 0 <= leaf < len(following) and following[leaf][0] is not None else 0
        if whose in plans or not learn:
            return plans.get(whose)
        leaf = next((place for place, (each, _) in enumerate(following) if type(each).__name__ == _LEAF), -1)
        whose = id(following[leaf][0].variable) if leaf >= 0 else 0
        made = self._planned(function, known[number], following) if number in known else None
        self._plans[number] = leaf, {**plans, whose: made}
        return made

    def _planned(self, function: Any, of: Known, following: Sequence[Any]) -> Plan | None:
        made, parameters = of
        if getattr(type(function)._forward_cls, "clear_saved_tensors_on_access", False):
            return None  # to read them is to lose them
        tensors = [place for place, is_tensor in enumerate(made.inputs) if is_tensor]
        saved = _saved(function)
        start = type(function)._forward_cls.metadata.tensors_saved_for_backwards_slice.start
        if len(tensors) != len(following) or len(made.returned) < start + len(saved):
            return None
        leaves, given = {}, {}
        for number, (place, (each, _)) in enumerate(zip(tensors, following, strict=True)):
            if each is None:
                continue
            variable = getattr(each, "variable", None)
            if variable is None:
                given[place] = number
            else:
                leaves[place] = variable
        bricks = _Bricks(self._session, made, leaves)

        def block_of(node: int) -> int:
            return ~given[node] if node in given else bricks.of_node(node)

        readable = [
            node if self._readable(value) and value.is_floating_point() else -1
            for node, value in zip(made.returned[start:], saved, strict=False)
        ]
        judged = blame.judged(made, {*parameters, *leaves}, given)
        outputs = made.returned[:start]
        found = blame.witnesses(judged, outputs, readable, block_of)
        end, last = blame.tail(judged, outputs, found, block_of)
        kept = tuple(Kept(each.kept, each.block, _asked(made, each.between)) for each in found)
        return Plan(len(saved), kept, max(end, NOBODY), _asked(made, last), tuple(given.values()), bricks.own)


class Insider(Sentry):
    """Looks out in a stretch where blocks run inside compiled code: no hook, but a look at what that has saved."""

    __slots__ = ("_insides",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._insides: Insides = self._lookout.insides
        self._most = max(len(self._known), 1)

    @property
    def _waits(self) -> bool:
        return True

    def _seen_of(self, loss: torch.Tensor, device: int) -> Found:
        found = self._insides.outputs(loss, learn=False)
        if len(found) > self._most or any(each.value.get_device() != device for each in found):
            return [], [], [], None
        places = [
            number for _, value, _ in found for number in (value.data_ptr(), value.numel() << 2 | KIND[value.dtype])
        ]
        return [each.brick for each in found], places, follows(found), [each.asked for each in found]


def follows(found: Sequence[Any]) -> list[bool]:
    """Whether something stands before each of these: that was finite, if this is the first that is not."""
    return [bool(number) for number in range(len(found))]


class _Parts:
    """The block that a parameter or a module belongs to, as a brick."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._parts = {model.name: models.parts(model) for model in session.models}
        named = [parameter for model in session.models for _, parameter, alias in models.parameters(model) if alias]
        self._shared = set(map(id, named))
        """Parameters of several modules: they tell nothing of one."""

    def entry(self, parameter: torch.Tensor) -> Any:
        return None if id(parameter) in self._shared else self._session.book.get(parameter)

    def of(self, model: str, path: str) -> int:
        around = [part for part in self._parts.get(model, ()) if f"{path}.".startswith(f"{part}.")]
        part = max(around, key=len, default=path)  # what has no weights is none of the blocks
        return self._session.journal.brick(Brick(Kind.BLOCK, part, model)) if part else NOBODY

    def behind(self, maker: Any, proven: Collection[Any], tails: Mapping[Any, int]) -> int:
        """The one block whose parameters stand between what ``maker`` has put out and what is ``proven`` to be finite;
        compiled functions have ``tails``."""
        waiting, seen, found = [maker], {maker}, set[int]()
        while waiting:
            function = waiting.pop()
            if function in tails:
                found.add(tails[function])
                continue
            for each, _ in function.next_functions:
                variable = getattr(each, "variable", None)
                if variable is not None:
                    entry = self.entry(variable)
                    found.add(self.of(entry.model, entry.name) if entry is not None else NOBODY)
                elif each is not None and each not in seen and each not in proven:
                    seen.add(each)
                    waiting.append(each)
        return found.pop() if len(found) == 1 else NOBODY


class _Bricks(_Parts):
    """The block that each operation of a compiled graph belongs to."""

    def __init__(self, session: Session, made: Forward, leaves: Mapping[int, torch.Tensor]) -> None:
        super().__init__(session)
        self._made = made
        self._known: dict[int, int] = {}
        self._roots = self._found(leaves)

    @property
    def own(self) -> bool:
        return any(here == _SELF for here, _, _ in self._roots)

    def of_node(self, node: int) -> int:
        if node not in self._known:
            bricks = {self._of_path(path) for path in self._made.nodes[node].paths or {_SELF}}
            self._known[node] = bricks.pop() if len(bricks) == 1 else NOBODY
        return self._known[node]

    def _found(self, leaves: Mapping[int, torch.Tensor]) -> list[tuple[str, str, str]]:
        """How paths of the graph begin, and what that is called in which model; the most usual first."""
        told: Counter[tuple[str, str, str]] = Counter()
        for node in self._made.nodes:
            for place in node.inputs:
                entry = self.entry(leaves[place]) if place in leaves else None
                if entry is not None and len(node.paths) == 1:
                    here, there = _apart(next(iter(node.paths)), entry.name.rpartition(".")[0])
                    told[here, there, entry.model] += 1
        return [root for root, _ in told.most_common()]

    def _of_path(self, path: str) -> int:
        for here, there, model in self._roots:
            if path == here or path.startswith(f"{here}.") or not here:
                rest = path[len(here) :].lstrip(".")
                return self.of(model, ".".join(part for part in (there, rest) if part))
        return NOBODY


def _apart(here: str, there: str) -> tuple[str, str]:
    """Two paths without what they have in common at the end; the first keeps where it begins."""
    mine, theirs = here.split("."), there.split(".") if there else []
    while len(mine) > 1 and theirs and mine[-1] == theirs[-1]:
        mine.pop()
        theirs.pop()
    return ".".join(mine), ".".join(theirs)


def _asked(made: Forward, between: int) -> Asked:
    told = dict.fromkeys(_told(made.nodes[node]) for node in blame.bits(between) if made.nodes[node].asked)
    return tuple(told) if len(told) <= _MOST_ASKED else ()


def _told(node: Node) -> str:
    file, _, line = node.asked.rpartition(":")
    return f"{node.target} in {os.path.basename(file)}:{line}"


def _made_by(loss: torch.Tensor) -> Any:
    """The function that has put out a loss, or what it is a plain fraction of, as of a mean of micro-batches."""
    function: Any = loss.grad_fn
    for _ in range(_MOST_SCALES):
        if type(function).__name__ != "DivBackward0":
            break
        by = function._saved_other
        if by is None or by.device.type != "cpu" or by.dim() or not 1 <= abs(float(by)) < math.inf:
            break
        function = function.next_functions[0][0]
    return function


def _saved(function: Any) -> tuple[torch.Tensor, ...]:
    beside = getattr(function, "_tensors_no_vc_check", None)
    return (*function.saved_tensors, *beside) if beside else function.saved_tensors


def _number(function: Any) -> int:
    """That of compiled code; -1 of anything else."""
    number = getattr(getattr(type(function), "_forward_cls", None), "_aot_id", -1)
    return number if isinstance(number, int) else -1
