"""Where a loss that is not finite was made.

Enters: a loss that is not finite, before its backward; on a device, where nobody knows that yet, the losses of sampled
and of early steps. Leaves: an ``origin`` event: the first operation of the forward whose inputs were finite and whose
output cannot have been, from what autograd saved, and the module it stands in (see ``places``); or the weights or the
data that were broken before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from brickprof.bricks import Brick
from brickprof.capture import breaking, graph, hub, unseen
from brickprof.capture.breaking import Look
from brickprof.capture.places import Places
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.sights import OnHost, Question, Saved, Sight
from brickprof.capture.surroundings import hands_off
from brickprof.capture.tensors import on_host
from brickprof.capture.unseen import Made, Unseen

_MOST = 4
_APART = 10
_BACK = 12
_EARLY = 64
_SHARE = 0.1
"""Of a step: what asking may take in each of the early ones, in which most of what breaks is broken."""
_MOST_PENDING = 4
_counter = time.perf_counter_ns


class _Found(NamedTuple):
    fields: dict[str, Any]
    function: Any = None
    """The operation, where it is one that broke."""


class OriginProbe(Probe):
    name = "origin"
    ways = ("facts", "full")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._told = 0
        self._not_before = 0
        self._pending = 0
        self._cost = 0
        self._places = session.places = Places(session, self.name)

    # -- where operations stand

    def models_found(self) -> None:
        self._places.again()

    def step_begin(self, step: int) -> None:
        self._places.watch()

    def backward_begin(self, losses: Sequence[torch.Tensor], upstream: Any) -> None:
        for loss in losses[:1]:
            self._places.learn(loss)
            single = loss.numel() == 1 and upstream is None and not hasattr(loss, "to_local")
            if single and not on_host(loss) and self._asking():
                start = _counter()
                self._ask(loss)
                self._cost = _counter() - start
                self.session.spend("full", self._cost)

    def step_end(self, step: int) -> None:
        self._places.release()

    def compiling(self, module: Any) -> None:
        self._places.release()

    def close(self) -> None:
        self._places.release()

    # -- a loss that is not finite

    def loss_broken(self, loss: torch.Tensor) -> None:
        if self._wanted(self.session.step) and not hands_off():
            self._places.learn(loss)
            self._tell(self.session.step, loss.grad_fn, graph.nodes(loss), OnHost(self._fed()))

    def _fed(self) -> torch.Tensor | None:
        return self.session.fed() if self.session.fed is not None else None

    def _wanted(self, step: int) -> bool:
        return self._told < _MOST and step >= self._not_before

    def _tell(self, step: int, root: Any, nodes: list[graph.Node], sight: Sight) -> None:
        self._told += 1
        self._not_before = step + _APART
        self.session.fact("origin", self._find(root, nodes, sight), step=step, always=True)

    # -- on a device: what may be needed is asked for, and looked at if the loss turns out to be broken

    def _asking(self) -> bool:
        session, on = self.session, self.session.on
        early = session.step < _EARLY and session.cadence.spares(self._cost, _SHARE)
        if not (on.full or on.deep or early) or session.settings.level == "light":
            return False
        if hub.keeps_graph:  # what is held until the answer would keep its activations alive
            return False
        return self._pending < _MOST_PENDING and self._wanted(session.step) and not hands_off()

    def _ask(self, loss: torch.Tensor) -> None:
        step, root, nodes = self.session.step, loss.grad_fn, graph.nodes(loss)
        question = Question(loss, nodes, self._fed())

        def arrived(host: torch.Tensor) -> None:
            self._pending -= 1
            numbers = host.tolist()
            if not math.isfinite(numbers[0]) and self._wanted(step):
                self._tell(step, root, nodes, question.answered(numbers))

        readback = self.session.readback
        dropped = readback.dropped
        self._pending += 1
        readback.read(question.numbers, arrived)
        self._pending -= readback.dropped > dropped  # a device that is far behind gives no answer

    # -- what it was

    def _find(self, root: Any, nodes: list[graph.Node], sight: Sight) -> dict[str, Any]:
        finite: set[Made] = set()
        for node in nodes:
            found = self._of(node, sight, finite)
            if found is not None:
                where = self._where(root, nodes, found) if found.function is not None else {}
                return {"op": node.name, "depth": node.depth, "nodes": len(nodes)} | found.fields | where
        for node in nodes:
            fields = self._of_leaf(getattr(node.function, "variable", None), sight)
            if fields is not None:
                return {"op": node.name, "depth": node.depth, "nodes": len(nodes)} | fields
        return {"op": type(root).__name__, "kind": "unknown", "inputs": [], "depth": 0, "nodes": len(nodes)}

    def _of(self, node: graph.Node, sight: Sight, finite: set[Made]) -> _Found | None:
        """What ``node`` did wrong, or what it was given that was wrong already; what has been seen to be ``finite``
        before, this one included."""
        saved = sight.of(node)
        finite.update((each.maker, each.output) for each in saved if each.look["finite"])
        inputs = [each for each in saved if not breaking.is_result(each.look["name"])]
        inputs = [each for each in inputs if not breaking.masks(node, each.look) or each.look["finite"]]
        spoilt = next((each for each in inputs if not each.look["finite"]), None)
        if spoilt is not None:
            return self._given(spoilt, sight, finite)
        looks = [each.look for each in inputs]
        results = [each.look for each in saved if breaking.is_result(each.look["name"])]
        kind = breaking.mistake(node, looks)
        if kind is not None:
            return _Found({"kind": kind, "inputs": looks}, node.function)
        return (
            self._by_result(node, looks, results, sight, finite)
            if any(not each["finite"] for each in results)
            else None
        )

    def _by_result(
        self, node: graph.Node, looks: list[Look], results: list[Look], sight: Sight, finite: set[Made]
    ) -> _Found:
        """What is not finite came out of ``node``: if it did not go into it."""
        kind = breaking.mishap(node, results)
        before = self._unseen(unseen.behind(node.function, finite), sight, results)
        if before is None and breaking.needs_infinity(kind):
            product = unseen.product(node.function, finite)
            if product is not None:
                fields = {"op": type(product).__name__, "kind": "overflow", "made_in": graph.dtype(product)}
                before = _Found({**fields, "inputs": results}, product)
        return before or _Found({"kind": kind, "inputs": looks or results}, node.function)

    def _given(self, spoilt: Saved, sight: Sight, finite: set[Made]) -> _Found:
        maker, look = spoilt.maker, spoilt.look
        if maker is None:
            return _Found(
                self._weights(spoilt.leaf, look) if spoilt.leaf is not None else _handed(look, sight, self._whole())
            )
        before = self._unseen(unseen.behind(maker, finite, itself=True), sight, [look])
        if before is not None:
            return before
        maker = _reshaped(maker)
        kind = "overflow" if look["inf"] and not look["nan"] else "unknown"
        return _Found({"op": type(maker).__name__, "kind": kind, "inputs": [look]}, maker)

    def _unseen(self, found: Unseen, sight: Sight, looks: list[Look]) -> _Found | None:
        """Weights that are broken, or what nobody can look into; where there are several of these, it may be each."""
        for leaf in found.leaves:
            fields = self._of_leaf(leaf, sight)
            if fields is not None:
                return _Found(fields)
        if not found.closed:
            return None
        fields = {"op": type(found.closed[-1]).__name__, "kind": "unknown", "inputs": looks}
        return _Found(fields, found.closed[0] if len(found.closed) == 1 else None)

    def _whole(self) -> bool:
        """Whether the model was given whole numbers, which are always finite."""
        fed = self.session.fed() if self.session.fed is not None else None
        return fed is not None and not fed.is_floating_point() and not fed.is_complex()

    def _of_leaf(self, leaf: Any, sight: Sight) -> dict[str, Any] | None:
        if not isinstance(leaf, torch.Tensor) or not leaf.requires_grad:
            return None
        look = sight.weight(leaf)
        return None if look is None or look["finite"] else self._weights(leaf, look)

    def _weights(self, leaf: torch.Tensor, look: Look) -> dict[str, Any]:
        entry = self.session.book.get(leaf)
        named = {} if entry is None else {"tensor": entry.number, "brick": entry.brick}
        return {"kind": "weights", "inputs": [look | {"name": "weight"}]} | named

    def _where(self, root: Any, nodes: list[graph.Node], found: _Found) -> dict[str, int]:
        """The module of the operation; of one in a model's own code also the part that made what it was given."""
        brick = self._places.find(root, nodes, found.function)
        if brick is None:
            return {}
        intern = self.session.journal.brick
        part = self._part(root, nodes, found.function, brick) if not brick.path else None
        return {"brick": intern(brick)} | ({} if part is None else {"given_by": intern(part)})

    def _part(self, root: Any, nodes: list[graph.Node], function: Any, whole: Brick) -> Brick | None:
        for _ in range(_BACK):
            function = _argument(function)
            brick = None if function is None else self._places.find(root, nodes, function)
            if brick != whole:
                return brick
        return None


def _handed(look: Look, sight: Sight, whole: bool) -> dict[str, Any]:
    """What needs no gradient: the model was given it, or made it of what it was given, or the script did."""
    given = sight.given()
    finite = True if whole else None if given is None else given["finite"]
    return {"kind": "input", "inputs": [look], "given_finite": finite}


def _reshaped(function: Any) -> Any:
    """The operation that made the values which ``function`` only shows in another shape."""
    for _ in range(_BACK):
        following = [each for each, _ in function.next_functions if each is not None]
        if graph.named(function).op not in graph.RESHAPES or len(following) != 1:
            break
        function = following[0]
    return function


def _argument(function: Any) -> Any:
    """What made the argument of an operation that has one, or the divisor."""
    following = [each for each, _ in function.next_functions]
    if type(function).__name__.startswith("Div") and len(following) == 2:
        return following[1]
    made = [each for each in following if each is not None and not hasattr(each, "variable")]
    return made[0] if len(made) == 1 else None
