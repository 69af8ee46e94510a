"""Which block has made something that is not finite, by what compiled code keeps for its backward.

Enters: a ``Forward``, and which of its nodes are kept and can be read. Leaves: a few of these, about one for each
block, in the order of the forward, each with the block to blame if it is not finite and all those before it are.

What is not finite spoils whatever is computed from it. If all that was kept before is finite and this is not, one of
the operations between the two has made it so. Where they are of one block, that is the one; where they are of several,
nobody can tell, and nobody is blamed, unless all but those that a script asks for by name (a logarithm, a division) are
products, which need enormous factors. Operations that only move values do not count there, nor do those of a norm or a
sum: they make hardly anything that is not finite of values that are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from brickprof.capture.forward import Forward

NOBODY = 0
_MOVES = frozenset(
    {
        "_unsafe_view", "alias", "as_strided", "cat", "clone", "detach", "expand", "getitem", "permute", "repeat",
        "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "t", "transpose", "unbind",
        "unsqueeze", "view",
    }
)  # fmt: skip
_PRODUCTS = frozenset({"addmm", "baddbmm", "bmm", "convolution", "mm"})
_PARTS = frozenset({"diagonal", "narrow", "select", "slice"})
_CUTS = frozenset({"chunk", "split", "split_with_sizes", "unbind"})
"""What gives a part of a tensor: that one is finite says nothing of the others."""
_MILD = frozenset(
    {
        "_to_copy", "abs", "add", "amax", "amin", "bernoulli", "bitwise_and", "clamp", "clamp_max", "clamp_min",
        "convert_element_type", "erf", "ge", "gt", "le", "lt", "maximum", "mean", "minimum", "mul", "native_dropout",
        "neg", "pow", "rand", "relu", "rsqrt", "sigmoid", "silu", "sub", "sum", "tanh", "var", "var_mean", "where",
    }
)  # fmt: skip
"""What makes nothing that is not finite of values of a usual size, if no weight or buffer is among them."""
BlockOf = Callable[[int], int]
"""The block of a node, as some number; ``NOBODY`` if it has none."""


class Witness(NamedTuple):
    kept: int
    """Its place among what is kept."""
    node: int
    block: int
    """The one to blame if it is not finite, and all witnesses before it are."""
    between: int = 0
    """The operations, as bits, one of which has made it so then."""


class Judged(NamedTuple):
    """A ``Forward`` of which it is known what its inputs are. Nodes as bits; of a constant, of a weight, and of what is
    one weight in another shape or type, there are none."""

    behind: tuple[int, ...]
    """Of each node: itself and all that it is computed from."""
    proven: tuple[int, ...]
    """What is finite if it is."""
    strong: int
    """Nodes that may make something that is not finite of values that are."""
    beside: tuple[int, ...]
    """Of each node: what is asked for by name and makes, of data alone or of a weight, what it is computed from."""
    asked: int
    """Nodes that are asked for by name."""
    products: int
    """Nodes that make nothing but products, of a type that holds those of usual values."""


def judged(forward: Forward, weights: Collection[int], given: Collection[int]) -> Judged:
    """``weights``: inputs that are parameters; ``given``: those that somebody has computed. What is made of neither,
    such as a mask or a table of angles, is taken to be finite, but for operations that are asked for by name."""
    behind, proven, around, cut, sources, strong = _inputs(forward, given)
    beside = [0] * len(forward.inputs)
    asked = products = 0
    for place in range(len(forward.inputs), len(forward.nodes)):
        node = forward.nodes[place]
        source = frozenset[int]().union(*(sources[each] for each in node.inputs))
        mixed = len(source) > 1 or node.target == "embedding"
        before = _any(behind, node.inputs)
        own = 1 << place if before or (mixed and not source.isdisjoint(weights)) else 0
        constants = _any(beside, (each for each in node.inputs if not behind[each]))
        beside.append(constants | (1 << place if node.asked and source and not own else 0))
        asked |= 1 << place if node.asked else 0
        products |= 1 << place if node.target in _PRODUCTS and not node.narrow else 0
        weighed = any(sources[each] and not behind[each] for each in node.inputs)
        weak = node.target in _MOVES or (node.target in _MILD and not weighed and not node.narrow)
        part = _is_part(forward, place)
        behind.append(before | own if own else 0)
        cut.append(part or (weak and any(cut[each] for each in node.inputs)))
        around.append(_any(around if weak else behind, node.inputs))
        if cut[place]:
            proven.append(own | _any(around if part else proven, node.inputs))
        else:
            proven.append(behind[place])
        strong |= 0 if weak else own
        # Two are enough to tell that it is mixed, as long as one of them is a weight if any is.
        sources.append(
            source if len(source) < 3 else frozenset(sorted(source, key=lambda each: each not in weights)[:2])
        )
    return Judged(tuple(behind), tuple(proven), strong, tuple(beside), asked, products)


def _inputs(
    forward: Forward, given: Collection[int]
) -> tuple[list[int], list[int], list[int], list[bool], list[frozenset[int]], int]:
    """Of the inputs: themselves, twice; what is finite if a part of each is; whether each is a part of something; which
    tensors it comes from; and which of them may hold anything."""
    number = len(forward.inputs)
    own = [1 << place if place in given else 0 for place in range(number)]
    sources = [frozenset((place,) if is_tensor else ()) for place, is_tensor in enumerate(forward.inputs)]
    return own, own.copy(), [0] * number, [False] * number, sources, _any(own, range(number))


def _is_part(forward: Forward, place: int) -> bool:
    node = forward.nodes[place]
    cuts = any(forward.nodes[each].target in _CUTS for each in node.inputs)
    return node.target in _PARTS or (node.target == "getitem" and cuts)


def witnesses(known: Judged, outputs: Iterable[int], kept: Sequence[int], block_of: BlockOf) -> list[Witness]:
    """Those of the nodes ``kept`` (-1: one that cannot be read) that tell the blocks apart; ``outputs`` are the nodes
    that somebody else goes on with."""
    needed = _any(known.behind, (output for output in outputs if output >= 0))
    usable = sorted((node, place) for place, node in enumerate(kept) if node >= 0 and needed >> node & 1)
    all_ = _blamed(known, usable, block_of)
    last = _last(known, all_)
    fewer = _blamed(known, [(each.node, each.kept) for each in last], block_of)
    return fewer if [each.block for each in fewer] == [each.block for each in last] else all_


def tail(known: Judged, outputs: Iterable[int], found: Sequence[Witness], block_of: BlockOf) -> tuple[int, int]:
    """The block to blame where one of the ``outputs`` is not finite and all that was ``found`` is, and the operations
    that may have made it so."""
    finite = _any(known.proven, (witness.node for witness in found))
    wanted = _any(known.behind, (output for output in outputs if output >= 0)) & ~finite
    return _block(known, wanted, block_of), _between(known, wanted)


def bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _last(known: Judged, found: Sequence[Witness]) -> list[Witness]:
    """Without those that another of the same block proves, with none of another between the two: it tells as much."""
    last: list[Witness] = []
    for each in reversed(found):
        run = []
        for later in reversed(last):
            if later.block != each.block:
                break
            run.append(later)
        if not any(known.proven[later.node] >> each.node & 1 for later in run):
            last.append(each)
    return last[::-1]


def _blamed(known: Judged, found: Iterable[tuple[int, int]], block_of: BlockOf) -> list[Witness]:
    finite, told = 0, []
    for node, place in found:
        candidates = known.behind[node] & ~finite
        if candidates & known.strong:  # else it is as finite as those before it
            told.append(Witness(place, node, _block(known, candidates, block_of), _between(known, candidates)))
        finite |= known.proven[node]
    return told


def _block(known: Judged, candidates: int, block_of: BlockOf) -> int:
    """Where products are of other blocks than what is asked for by name, these are to blame."""
    suspects = _between(known, candidates)
    asked = suspects & known.asked
    blocks = {block_of(node) for node in bits(suspects)}
    if len(blocks) > 1 and asked and not suspects & ~(asked | known.products):
        blocks = {block_of(node) for node in bits(asked)}
    return blocks.pop() if len(blocks) == 1 else NOBODY


def _between(known: Judged, candidates: int) -> int:
    return candidates & known.strong | _any(known.beside, bits(candidates))


def _any(masks: Sequence[int], places: Iterable[int]) -> int:
    found = 0
    for place in places:
        found |= masks[place]
    return found
