"""Units that do nothing: a rectifier that is zero for every sample, a squashing function at its bounds.

Enters: the graph behind a loss, in sampled steps. Leaves: a ``units`` event per activation: the share of units that
were zero for every sample looked at, the share of values at the bounds. Read from what autograd saved, so that it does
not matter how the activation was written; nothing inside a compiled or checkpointed part is seen.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from brickprof.capture import graph
from brickprof.capture.graph_probe import GraphProbe

_KINDS = {"Relu": "ReLU", "Tanh": "Tanh", "Sigmoid": "Sigmoid", "Threshold": "ReLU"}
_MOST_ACTIVATIONS = 64
_MOST_ELEMENTS = 1 << 17
_ROWS = 128


class _Found(NamedTuple):
    brick: int
    activation: str
    units: int
    rows: int


class UnitsProbe(GraphProbe):
    name = "units"
    most_looks = math.inf

    def look(self, loss: torch.Tensor, nodes: list[graph.Node]) -> None:
        found: list[_Found] = []
        shares: list[torch.Tensor] = []
        for node in nodes:
            if node.op in _KINDS and len(found) < _MOST_ACTIVATIONS:
                each = self._look(node)
                if each is not None:
                    found.append(each[0])
                    shares.append(each[1])
        if found:
            self._tell(found, torch.stack(shares))

    def _look(self, node: graph.Node) -> tuple[_Found, torch.Tensor] | None:
        value = next((value for name, value in graph.saved(node.function) if name == "result"), None)
        if value is None or value.dim() < 2 or value.layout is not torch.strided or not value.is_floating_point():
            return None
        brick = graph.owner(node.function, self.session.book)
        x = _rows(value.detach())
        if x is None:
            return None
        kind = _KINDS[node.op]
        dead = (x == 0).all(0).float().mean() if kind == "ReLU" else torch.zeros((), device=x.device)
        found = _Found(brick, kind, x.shape[1], x.shape[0])
        return found, torch.stack([dead, _saturated(x, kind)]).to(torch.float32)

    def _tell(self, found: list[_Found], shares: torch.Tensor) -> None:
        session, step = self.session, self.session.step

        def arrived(host: torch.Tensor) -> None:
            for each, (dead, saturated) in zip(found, host.tolist(), strict=True):
                bounded = each.activation != "ReLU"
                fields = {
                    "brick": each.brick,
                    "activation": each.activation,
                    "units": each.units,
                    "rows": each.rows,
                    "dead": None if bounded or math.isnan(dead) else dead,
                    "saturated": saturated if bounded and not math.isnan(saturated) else None,
                }
                session.fact("units", fields, step=step, wanted=True)

        session.readback.read(shares, arrived)


def _rows(x: torch.Tensor) -> torch.Tensor | None:
    """Samples (and places of an image or a sequence) by units."""
    if x.dim() in (4, 5):  # images: units are channels
        x = x.movedim(1, -1)
    if x.numel() > _MOST_ELEMENTS:
        x = x[:_ROWS]
        for place in range(1, x.dim() - 1):
            stride = max(x.shape[place] // 8, 1)
            x = x[(slice(None),) * place + (slice(None, None, stride),)]
    return x.reshape(-1, x.shape[-1]) if x.numel() <= 4 * _MOST_ELEMENTS else None


def _saturated(x: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "Sigmoid":
        return ((x < 0.01) | (x > 0.99)).float().mean()
    if kind == "Tanh":
        return (x.abs() > 0.99).float().mean()
    return torch.zeros((), device=x.device)
