"""Who is who: every tensor and optimizer that was seen, with a stable number and a name.

Enters: parameters of found models, leaves of loss graphs, optimizers. Leaves: ``Entry`` by tensor, in
constant time, without keeping any tensor alive.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from brickprof.bricks import Brick, Kind
from brickprof.capture import models

if TYPE_CHECKING:
    from brickprof.journal import Journal


@dataclass(slots=True)
class Entry:
    number: int
    name: str
    brick: int
    model: str
    tensor: weakref.ref[torch.Tensor]


class Book:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._entries: dict[int, Entry] = {}
        self._optimizers: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._numbered = 0
        self._nameless = 0
        self._next_optimizer = 0
        self.step = 0

    def get(self, tensor: torch.Tensor) -> Entry | None:
        entry = self._entries.get(id(tensor))
        return entry if entry is not None and entry.tensor() is tensor else None

    def enter(
        self, tensor: torch.Tensor, name: str, *, model: str = "", path: str = "", alias_of: str | None = None
    ) -> Entry:
        """Gives ``tensor`` its number; a second name of the same tensor is journalled as an alias."""
        known = self.get(tensor)
        if known is not None and (known.name == name or alias_of is None) and known.model == model:
            return known
        brick = self._journal.brick(Brick(Kind.BLOCK, path, model))
        fields: dict[str, Any] = {
            "model": model,
            "brick": brick,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "device": str(tensor.device),
            "trainable": tensor.requires_grad,
        }
        if alias_of is not None:
            fields["alias_of"] = alias_of
        number = self._journal.tensor(name, fields)
        entry = Entry(number, name, brick, model, weakref.ref(tensor))
        if alias_of is None:
            self._entries[id(tensor)] = entry
        return entry

    def enter_model(self, model: models.Model) -> None:
        for name, parameter, alias_of in models.parameters(model):
            path = name.rpartition(".")[0]
            self.enter(parameter, name, model=model.name, path=path, alias_of=alias_of)

    def entry(self, tensor: torch.Tensor) -> Entry:
        """The entry of ``tensor``, made up if nobody named it (a leaf outside any module)."""
        known = self.get(tensor)
        if known is not None:
            return known
        self._nameless += 1
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        return self.enter(tensor, f"tensor{self._nameless}[{shape}]")

    def trainable(self) -> list[torch.Tensor]:
        """The living tensors that want gradients."""
        return [tensor for tensor in self.tensors() if tensor.requires_grad]

    def tensors(self) -> list[torch.Tensor]:
        alive = (entry.tensor() for entry in self._entries.values())
        return [tensor for tensor in alive if tensor is not None]

    def optimizer(self, optimizer: Any) -> int:
        """The number of ``optimizer`` in this run, from 0."""
        known = self._optimizers.get(id(optimizer))
        if known is not None and known[0]() is optimizer:
            return known[1]
        number = self._next_optimizer
        self._next_optimizer += 1
        self._optimizers[id(optimizer)] = (weakref.ref(optimizer), number)
        return number

    def optimizers(self) -> list[Any]:
        alive = ((reference(), number) for reference, number in self._optimizers.values())
        return [optimizer for optimizer, _ in alive if optimizer is not None]


def owned(optimizer: Any) -> list[torch.Tensor]:
    """The parameters that ``optimizer`` updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
