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

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from brickprof.bricks import Brick, Kind
from brickprof.capture import blame, graph, models
from brickprof.capture.blame import NOBODY
from brickprof.capture.forward import Forward
from brickprof.capture.sentry import Found, Sentry
from brickprof.capture.surroundings import saved_by_others
from brickprof.capture.taps.forward_graphs import Known, known
from brickprof.operators.launch import KIND

if TYPE_CHECKING:
    from brickprof.capture.session import Session

_MOST_FUNCTIONS = 256
"""On the way from a loss to all compiled code: beyond, most of a model is not compiled, and the way is too long."""
_MOST_TENSORS = 256
_GIVEN = -1
"""In the place of a block: whoever has made what compiled code was given."""
_LEAF = "AccumulateGrad"


class Kept(NamedTuple):
    place: int
    brick: int


class Plan(NamedTuple):
    """What to look at of what one compiled function has saved."""

    saved: int
    """Tensors, in all."""
    kept: tuple[Kept, ...]
    tail: int
    """The brick to blame where all of these are finite and what it puts out is not."""
    leads: tuple[int, ...]
    """Inputs that somebody has computed, by their places."""


class Insides:
    def __init__(self, session: Session, readable: Callable[[torch.Tensor], bool]) -> None:
        self._session = session
        self._readable = readable
        self._plans: dict[int, tuple[int, dict[int, Plan | None]]] = {}
        """By the number of a compiled function: which of its inputs is a leaf, and plans by the id of that."""

    def forget(self) -> None:
        """Models or blocks are others."""
        self._plans.clear()

    @property
    def any(self) -> bool:
        """Whether any compiled code can be looked into."""
        return bool(known) and not saved_by_others()

    def outputs(self, loss: torch.Tensor, *, learn: bool) -> list[tuple[int, torch.Tensor]]:
        """Bricks and tensors; ``learn``: whether there is time to look at code for the first time."""
        way = self._way(loss.grad_fn, learn)
        if way is None or saved_by_others():
            return []
        found: list[tuple[int, torch.Tensor]] = []
        tails: dict[Any, int] = {}
        for function, plan in way:
            if plan is None:
                found += _consumed(function, tails)
                continue
            saved = _saved(function)
            if len(saved) != plan.saved:
                return []
            for place, brick in plan.kept:
                value = saved[place]
                found.append((tails.get(value.grad_fn, NOBODY) if brick == _GIVEN else brick, value))
            tails[function] = plan.tail
        return found if 0 < len(found) <= _MOST_TENSORS and any(brick for brick, _ in found) else []

    def _way(self, start: Any, learn: bool) -> list[tuple[Any, Plan | None]] | None:
        """The compiled functions behind a loss with their plans, and what uses what they have put out, in the order of
        the forward; None where there is more to it."""
        waiting, seen = [start], {start}
        way: list[tuple[Any, Plan | None]] = []
        while waiting:
            function = waiting.pop()
            following = function.next_functions
            number = _number(function)
            plan = None
            if number >= 0:
                plan = self._plan(function, number, following, learn)
                if plan is None:
                    return None
                way.append((function, plan))
                following = [following[place] for place in plan.leads]
            uses = False
            for each, _ in following:
                if each is None or type(each).__name__ == _LEAF:
                    continue
                uses = uses or _number(each) >= 0
                if each not in seen:
                    seen.add(each)
                    waiting.append(each)
            if uses and plan is None:
                way.append((function, None))
            if len(seen) > _MOST_FUNCTIONS:
                return None
        way.sort(key=lambda each: graph.order(each[0]))
        return way

    def _plan(self, function: Any, number: int, following: Sequence[Any], learn: bool) -> Plan | None:
        leaf, plans = self._plans.get(number, (-1, {}))
        whose = id(following[leaf][0].variable) if 0 <= leaf < len(following) and following[leaf][0] is not None else 0
        if whose in plans or not learn:
            return plans.get(whose)
        leaf = next((place for place, (each, _) in enumerate(following) if type(each).__name__ == _LEAF), -1)
        whose = id(following[leaf][0].variable) if leaf >= 0 else 0
        made = self._made(function, known[number], following) if number in known else None
        self._plans[number] = leaf, {**plans, whose: made}
        return made

    def _made(self, function: Any, of: Known, following: Sequence[Any]) -> Plan | None:
        graph_, parameters = of
        tensors = [place for place, is_tensor in enumerate(graph_.inputs) if is_tensor]
        saved = _saved(function)
        start = type(function)._forward_cls.metadata.tensors_saved_for_backwards_slice.start
        if len(tensors) != len(following) or len(graph_.returned) < start + len(saved):
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
        judged = blame.judged(graph_, {*parameters, *leaves}, given)
        bricks = _Bricks(self._session, graph_, leaves)
        block_of = bricks.of if not given else lambda node: _GIVEN if node in given else bricks.of(node)
        readable = [
            node if self._readable(value) and value.is_floating_point() else -1
            for node, value in zip(graph_.returned[start:], saved, strict=False)
        ]
        outputs = graph_.returned[:start]
        found = blame.witnesses(judged, outputs, readable, block_of)
        end = blame.tail(judged, outputs, found, block_of)
        kept = tuple(Kept(each.kept, each.block) for each in found)
        return Plan(len(saved), kept, max(end, NOBODY), tuple(given.values()))


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
        if len(found) > self._most or any(value.get_device() != device for _, value in found):
            return [], [], []
        places = [number for _, value in found for number in (value.data_ptr(), value.numel() << 2 | KIND[value.dtype])]
        return [brick for brick, _ in found], places, follows(found)


def follows(found: Sequence[Any]) -> list[bool]:
    """Whether something stands before each of these: that was finite, if this is the first that is not."""
    return [bool(number) for number in range(len(found))]


class _Bricks:
    """The block that each operation of a graph belongs to, as a brick."""

    def __init__(self, session: Session, graph_: Forward, leaves: dict[int, torch.Tensor]) -> None:
        self._session = session
        self._graph = graph_
        self._known: dict[int, int] = {}
        self._parts = {model.name: models.parts(model) for model in session.models}
        self._roots = self._found(leaves)

    def of(self, node: int) -> int:
        if node not in self._known:
            bricks = {self._of_path(path) for path in self._graph.nodes[node].paths}
            self._known[node] = bricks.pop() if len(bricks) == 1 else NOBODY
        return self._known[node]

    def _found(self, leaves: dict[int, torch.Tensor]) -> list[tuple[str, str, str]]:
        """How paths of the graph begin, and what that is called in which model; the most usual first."""
        told: Counter[tuple[str, str, str]] = Counter()
        for node in self._graph.nodes:
            for place in node.inputs:
                entry = self._session.book.get(leaves[place]) if place in leaves else None
                if entry is not None and len(node.paths) == 1:
                    here, there = _apart(next(iter(node.paths)), entry.name.rpartition(".")[0])
                    told[here, there, entry.model] += 1
        return [root for root, _ in told.most_common()]

    def _of_path(self, path: str) -> int:
        for here, there, model in self._roots:
            if path == here or path.startswith(f"{here}.") or not here:
                rest = path[len(here) :].lstrip(".")
                whole = ".".join(part for part in (there, rest) if part)
                around = [part for part in self._parts.get(model, ()) if f"{whole}.".startswith(f"{part}.")]
                part = max(around, key=len, default="")
                return self._session.journal.brick(Brick(Kind.BLOCK, part, model)) if part else NOBODY
        return NOBODY


def _apart(here: str, there: str) -> tuple[str, str]:
    """Two paths without what they have in common at the end; the first keeps where it begins."""
    mine, theirs = here.split("."), there.split(".") if there else []
    while len(mine) > 1 and theirs and mine[-1] == theirs[-1]:
        mine.pop()
        theirs.pop()
    return ".".join(mine), ".".join(theirs)


def _consumed(function: Any, tails: dict[Any, int]) -> list[tuple[int, torch.Tensor]]:
    """What compiled code has put out, as far as the one that uses it has saved it."""
    found = []
    for _, value in graph.saved(function, unhooked=True):
        if value.grad_fn in tails and value.dtype in KIND and value.is_contiguous():
            found.append((tails[value.grad_fn], value))
    return found


def _saved(function: Any) -> tuple[torch.Tensor, ...]:
    beside = getattr(function, "_tensors_no_vc_check", None)
    return (*function.saved_tensors, *beside) if beside else function.saved_tensors


def _number(function: Any) -> int:
    """That of compiled code; -1 of anything else."""
    number = getattr(getattr(type(function), "_forward_cls", None), "_aot_id", -1)
    return number if isinstance(number, int) else -1
