"""The numbers of a journal turned back into names.

Enters: the ``brick`` and ``tensor`` events of one rank, or bricks and tensors as they come. Leaves: a brick
for every brick number, a tensor for every tensor number; one whose event was lost is named by its number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from brickprof.bricks import Brick, Kind
from brickprof.records import Event

NAMED_LATER = "interned"
"""Marks ``brick`` and ``tensor`` events that were added when a run was saved, not captured."""


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    model: str = ""
    brick: int = 0
    fields: dict[str, Any] = field(default_factory=dict)

    def shown(self, *, qualified: bool) -> str:
        return f"{self.model}.{self.name}" if qualified and self.model else self.name


@dataclass(slots=True)
class Names:
    bricks: dict[int, Brick] = field(default_factory=dict)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    _brick_numbers: dict[Brick, int] = field(default_factory=dict)
    _tensor_numbers: dict[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Names:
        names = cls()
        for event in events:
            if event.kind == "brick":
                names._learn_brick(event.fields)
            elif event.kind == "tensor":
                names._learn_tensor(event.fields)
        return names

    @property
    def models(self) -> set[str]:
        found = {brick.model for brick in self.bricks.values()}
        found |= {tensor.model for tensor in self.tensors.values()}
        return found - {""}

    def brick(self, number: int) -> Brick:
        return self.bricks.get(number) or Brick(Kind.BLOCK, f"brick {number}" if number else "")

    def tensor(self, number: int) -> Tensor:
        return self.tensors.get(number) or Tensor(f"tensor {number}" if number else "")

    def brick_number(self, brick: Brick) -> int:
        """The number of ``brick``, a new one when it has none yet."""
        if brick not in self._brick_numbers:
            self._enter_brick(max(self.bricks, default=0) + 1, brick)
        return self._brick_numbers[brick]

    def tensor_number(self, name: str, brick: Brick) -> int:
        if not name:
            return 0
        key = brick.model, name
        if key not in self._tensor_numbers:
            tensor = Tensor(name, brick.model, self.brick_number(brick))
            self._enter_tensor(max(self.tensors, default=0) + 1, tensor)
        return self._tensor_numbers[key]

    def _enter_brick(self, number: int, brick: Brick) -> None:
        self.bricks[number] = brick
        self._brick_numbers.setdefault(brick, number)

    def _enter_tensor(self, number: int, tensor: Tensor) -> None:
        self.tensors[number] = tensor
        self._tensor_numbers.setdefault((tensor.model, tensor.name), number)

    def _learn_brick(self, fields: dict[str, Any]) -> None:
        kind = fields.get("brick_kind")
        known = Kind(kind) if kind in set(Kind) else Kind.BLOCK
        brick = Brick(known, str(fields.get("path") or ""), str(fields.get("model") or ""))
        self._enter_brick(_whole(fields.get("id")), brick)

    def _learn_tensor(self, fields: dict[str, Any]) -> None:
        tensor = Tensor(
            str(fields.get("name") or ""),
            str(fields.get("model") or ""),
            _whole(fields.get("brick")),
            {key: value for key, value in fields.items() if key not in ("id", "name", "model", "brick")},
        )
        self._enter_tensor(_whole(fields.get("id")), tensor)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
