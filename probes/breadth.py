"""Breadth: how many operations stand side by side in the graph behind a loss.

Enters: the graph behind a loss, in a few sampled steps. Leaves: a ``breadth`` event: how many operations there are, and
of the kind that is met most often at one level (the same number of operations after the inputs) how often that is. A
loop over time makes a deep graph; a loop over rows or groups, which one operation could do, a broad one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from brickprof.capture import graph
from brickprof.capture.graph_probe import GraphProbe

_BROAD = 16
_ALIKE = 0.9
"""Layers that are written alike are broad alike: the first of them stands for all."""


class BreadthProbe(GraphProbe):
    name = "breadth"

    def look(self, loss: torch.Tensor, nodes: list[graph.Node]) -> None:
        session, places = self.session, self.session.places
        fields, one = _breadth(nodes)
        brick = places.find(loss.grad_fn, nodes, one) if places is not None and one is not None else None
        if brick is not None and places is not None:
            cut = len(nodes) >= graph.MOST_NODES  # what is left of a graph is its end, and not where the layers begin
            fields["brick"] = session.journal.brick(places.first_like(brick) if cut else brick)
        session.fact("breadth", fields, wanted=True)


def _breadth(nodes: list[graph.Node]) -> tuple[dict[str, Any], Any]:
    """The counts, and one of the operations that are met most often."""
    levels: dict[int, int] = {}
    for node in nodes:  # in the order of the forward: what a node is made from comes before it
        below = (levels.get(id(each), 0) for each, _ in node.function.next_functions if each is not None)
        levels[id(node.function)] = 1 + max(below, default=0)
    counts = Counter((levels[id(node.function)], node.op) for node in nodes if node.op != "AccumulateGrad")
    (level, op), most = counts.most_common(1)[0] if counts else ((0, ""), 0)
    level = min((at for (at, of), count in counts.items() if of == op and count >= _ALIKE * most), default=level)
    broad = sum(count for count in counts.values() if count >= _BROAD)
    one = next((n.function for n in nodes if n.op == op and levels[id(n.function)] == level), None)
    fields = {"nodes": len(nodes), "levels": max(levels.values(), default=0), "op": op, "level": level, "most": most}
    return fields | {"broad": broad}, one
