"""Tied weights: an embedding and an output layer that are one, look like one, or were declared to be one.

Enters: models being found. Leaves: a ``tied`` event for each such pair: whether the model's configuration declares it,
whether both use the same memory, whether their bits are equal now.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from brickprof.capture.models import Model
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.tensors import on_host

_DECLARED = ("tie_word_embeddings", "tie_weights", "tie_embeddings", "tied", "weight_tying", "tied_embeddings")
_MOST_PAIRS = 16
Named = tuple[str, nn.Parameter]


class TiedProbe(Probe):
    name = "tied"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._known: set[tuple[str, str, str]] = set()

    def models_found(self) -> None:
        if hands_off():
            return
        for model in self.session.models:
            root = model.root()
            if root is not None:
                self._compare(model, root)

    def _compare(self, model: Model, root: nn.Module) -> None:
        declared = _declared(root)
        embeddings = list(_weights(model, root, nn.Embedding))[:_MOST_PAIRS]
        heads = list(_weights(model, root, nn.Linear)) if embeddings else []
        for embedding in embeddings:
            for head in heads:
                if embedding[1].shape == head[1].shape and len(self._known) < _MOST_PAIRS:
                    self._tell(model.name, embedding, head, declared)

    def _tell(self, model: str, one: Named, other: Named, declared: bool | None) -> None:
        if (model, one[0], other[0]) in self._known:
            return
        same = one[1].data_ptr() == other[1].data_ptr() and type(one[1]) is nn.Parameter
        equal = True if same else _equal(one[1], other[1])
        if not (declared or same or equal):
            return
        self._known.add((model, one[0], other[0]))
        book = self.session.book
        fields: dict[str, Any] = {
            "model": model,
            "tensors": [book.entry(one[1]).number, book.entry(other[1]).number],
            "names": [one[0], other[0]],
            "declared": declared,
            "same_storage": same,
            "same_parameter": one[1] is other[1],
            "equal": equal,
        }
        self.session.fact("tied", fields, always=True)


def _weights(model: Model, root: nn.Module, cls: type[nn.Module]) -> list[Named]:
    return [
        (f"{model.path(path)}.weight".lstrip("."), module.weight)
        for path, module in root.named_modules(remove_duplicate=False)
        if isinstance(module, cls) and isinstance(module.weight, nn.Parameter)
    ]


def _declared(root: nn.Module) -> bool | None:
    """What a configuration that hangs on the model says, under any of the usual names."""
    for module in (root, *root.children()):
        for place in (getattr(module, "config", None), getattr(module, "cfg", None), module):
            told = place if isinstance(place, dict) else getattr(place, "__dict__", {})
            for name in _DECLARED:
                if isinstance(told.get(name), bool):
                    return bool(told[name])
    return None


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool | None:
    """None on a device, where comparing would wait for it."""
    if not (on_host(one) and on_host(other)) or one.dtype != other.dtype:
        return None
    return bool(torch.equal(one.detach(), other.detach()))
