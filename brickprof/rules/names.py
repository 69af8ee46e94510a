"""Numbers of a journal made into names again.

Enters: ``brick``, ``tensor``, ``model`` and ``optimizer_created`` events, as they come. Leaves: the
tensor, brick or owner behind a number or a name, per rank; display names are qualified once a run has a
second model.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from brickprof.bricks import Brick, Kind
from brickprof.records import Event

NAMING = frozenset({"brick", "tensor", "model", "optimizer_created", "hyperparameters"})
"""The kinds of events that say what a number or a name means."""
Key = tuple[str, str]
"""A parameter across ranks: its model and its name."""
LIMIT = 2**62
"""No number of a run is as large: numpy takes it, and sums of a few."""
_DIMENSIONS = 64


class Tensor(NamedTuple):
    number: int
    name: str
    model: str
    brick: Brick
    trainable: bool = True
    dtype: str = ""
    numel: int = 0
    alias: bool = False

    @property
    def key(self) -> Key:
        return self.model, self.name

    @property
    def sampled(self) -> bool:
        """Whether its gradient would be looked at: empty, complex and nameless tensors are not."""
        return self.numel > 0 and "float" in self.dtype and bool(self.model)


class Names:
    def __init__(self) -> None:
        self.models: set[str] = set()
        self._bricks: dict[tuple[int, int], Brick] = {}
        self._tensors: dict[tuple[int, int], Tensor] = {}
        self._by_name: dict[tuple[int, str], Tensor] = {}
        self._owners: dict[tuple[int, int], set[int]] = {}
        self._frozen: set[tuple[int, int]] = set()

    def feed(self, event: Event) -> None:
        if event.kind not in NAMING:
            return
        if event.kind == "brick":
            self._brick(event)
        elif event.kind == "tensor":
            self._tensor(event)
        elif event.kind == "model":
            self.models.add(str(event.fields.get("model", "")))
        else:
            self._optimizer(event)

    def _brick(self, event: Event) -> None:
        fields = event.fields
        try:
            kind = Kind(fields.get("brick_kind", "block"))
        except ValueError:
            kind = Kind.BLOCK
        brick = Brick(kind, str(fields.get("path", "")), str(fields.get("model", "")))
        self._bricks[event.rank, whole(fields.get("id"))] = brick

    def _tensor(self, event: Event) -> None:
        fields = event.fields
        number, name, model = (
            whole(fields.get("id")),
            str(fields.get("name", "")),
            str(fields.get("model", "")),
        )
        brick = self.brick(event.rank, fields.get("brick")) or Brick(Kind.BLOCK, name.rpartition(".")[0], model)
        shape = fields.get("shape")
        numel = whole(math.prod(whole(n, 1) for n in shape[:_DIMENSIONS])) if isinstance(shape, list) else 0
        tensor = Tensor(
            number, name, model, brick, bool(fields.get("trainable", True)), str(fields.get("dtype", "")),
            numel, fields.get("alias_of") is not None,
        )  # fmt: skip
        self._tensors[event.rank, number] = tensor
        self._by_name.setdefault((event.rank, name), tensor)
        self._by_name.setdefault((event.rank, f"{model}.{name}"), tensor)  # how a run with two models says it

    def _optimizer(self, event: Event) -> None:
        groups = event.fields.get("groups")
        if not isinstance(groups, list):
            return
        owned = self._owners.setdefault((event.rank, whole(event.fields.get("optimizer"))), set())
        for group in groups:
            if isinstance(group, dict):
                owned.update(_numbers(group.get("tensors")))
                self._frozen.update((event.rank, number) for number in _numbers(group.get("frozen")))

    def brick(self, rank: int, reference: Any) -> Brick | None:
        if isinstance(reference, Brick):
            return reference
        if isinstance(reference, str):
            return Brick(Kind.BLOCK, reference)
        return self._bricks.get((rank, whole(reference, -1)))

    def tensor(self, rank: int, reference: Any) -> Tensor:
        """The tensor behind a number or a name; one made up when the journal lost its introduction."""
        known = (
            self._by_name.get((rank, reference))
            if isinstance(reference, str)
            else self._tensors.get((rank, whole(reference, -1)))
        )
        if known is not None:
            return known
        name = reference if isinstance(reference, str) else f"tensor {reference}"
        return Tensor(whole(reference, 0), name, "", Brick(Kind.BLOCK, name.rpartition(".")[0]))

    def tensors(self, rank: int) -> list[Tensor]:
        return [tensor for (of, _), tensor in self._tensors.items() if of == rank]

    def ranks(self) -> list[int]:
        return sorted({rank for rank, _ in self._tensors})

    def owned_by(self, rank: int, optimizer: Any) -> set[int]:
        return self._owners.get((rank, optimizer), set())

    def owners(self, rank: int, number: int) -> list[Any]:
        return [who for (of, who), owned in self._owners.items() if of == rank and number in owned]

    def owned(self, rank: int) -> set[int]:
        """Every tensor of ``rank`` that some optimizer owns."""
        return set().union(*(owned for (of, _), owned in self._owners.items() if of == rank))

    def trained(self, rank: int, tensor: Tensor) -> bool:
        """Whether ``tensor`` wants a gradient: introduced so, and not frozen when updates began."""
        return tensor.trainable and not tensor.alias and (rank, tensor.number) not in self._frozen

    def optimizers(self, rank: int) -> int:
        return sum(1 for (of, _), owned in self._owners.items() if of == rank and owned)

    def knows_owners(self, rank: int) -> bool:
        return any(of == rank and owned for (of, _), owned in self._owners.items())

    def show(self, brick: Brick | None) -> str:
        if brick is None:
            return ""
        return brick.name(qualified=len(self.models - {""}) > 1)

    def show_tensor(self, tensor: Tensor) -> str:
        qualified = len(self.models - {""}) > 1 and tensor.model
        return f"{tensor.model}.{tensor.name}" if qualified else tensor.name


def _numbers(value: Any) -> list[int]:
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []


def whole(value: Any, otherwise: int = 0) -> int:
    """``value`` where it is a whole number that a run can have: journals can be damaged or come from elsewhere."""
    if isinstance(value, int) and not isinstance(value, bool) and -LIMIT < value < LIMIT:
        return value
    return otherwise


def number(value: Any) -> float | None:
    """``value`` where it is a number, finite or not."""
    if type(value) is float:
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # a whole number that no run writes, but a file may hold
            return math.inf if value > 0 else -math.inf
    return None
