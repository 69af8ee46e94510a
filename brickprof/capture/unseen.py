"""What nobody has seen, on the way from what was finite to what is not.

Enters: an operation whose result is not finite, or what made such a result, and all that was seen to be finite. Leaves:
the operations and weights that may have made it so: whoever names one of them should know that there are others.

Operations are told apart by what autograd saved of them. A function of somebody's own saves nothing that can be read,
compiled code neither, nor does what is recomputed in the backward or kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from brickprof.capture import graph

Made = tuple[Any, int]
"""A function, and which of its outputs."""
_MOST = 4000
_PRODUCTS = frozenset({"Addmm", "Mm", "Bmm", "Mv", "Addmv", "Convolution"})
_KEEP = graph.RESHAPES | {"ToCopy", "Mul", "Div"}


class Unseen(NamedTuple):
    leaves: list[Any]
    """Weights."""
    closed: list[Any]
    """Functions that nobody can look into, in the order of the forward."""


def behind(function: Any, finite: Collection[Made], *, itself: bool = False) -> Unseen:
    """What stands between ``function`` and what is known to be ``finite``."""
    waiting = [function] if itself else _makers(function, finite)
    seen, found = set(waiting), Unseen([], [])
    while waiting and len(seen) <= _MOST:
        each = waiting.pop()
        variable = getattr(each, "variable", None)
        if variable is not None:
            found.leaves.append(variable)
            continue
        if graph.closed(each):
            found.closed.append(each)
        following = [one for one in _makers(each, finite) if one not in seen]
        seen.update(following)
        waiting += following
    found.closed.sort(key=graph.order)
    return found


def product(function: Any, finite: Collection[Made]) -> Any:
    """The product of finite factors whose values alone ``function`` was given, scaled or in another shape: no mask
    stands between."""
    while len(makers := _makers(function, finite)) == 1:
        (function,) = makers
        op = graph.named(function).op
        if op in _PRODUCTS:
            return function if all(graph.source(each) is not None for each in _makers(function, finite)) else None
        if op not in _KEEP:
            break
    return None


def _makers(function: Any, finite: Collection[Made]) -> list[Any]:
    return list(
        dict.fromkeys(
            each for each, output in function.next_functions if each is not None and (each, output) not in finite
        )
    )
