"""What the forward of compiled code keeps for its backward, and which block makes each of these tensors.

Enters: the graph of a forward as AOTAutograd has it, a module of torch's or, where compiled code came from a cache, only
its text. Leaves: a ``Forward``, and of those tensors that can be read a few, in the order of the forward, by which the
first block is known that puts out something that is not finite.

Inside compiled code nothing is hooked. What is saved in it is there, though, when the backward begins, and what is not
finite spoils whatever is computed from it: if all that came before is finite and this is not, then one of the operations
between the two has made it so, and the first of them says in which block. Operations that only move values are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

MOST_NODES = 20_000
_MOVES = frozenset(
    {
        "_unsafe_view", "alias", "as_strided", "cat", "clone", "detach", "expand", "getitem", "permute", "repeat",
        "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "t", "transpose", "unbind",
        "unsqueeze", "view",
    }
)  # fmt: skip
_MILD = frozenset(
    {
        "abs", "add", "amax", "amin", "bernoulli", "bitwise_and", "clamp", "clamp_max", "clamp_min", "clone",
        "convert_element_type", "_to_copy", "erf", "full", "ge", "gt", "le", "lt", "maximum", "mean", "minimum", "mul",
        "native_dropout", "native_layer_norm", "neg", "pow", "rand", "relu", "rsqrt", "sigmoid", "silu", "sub", "sum",
        "tanh", "var", "var_mean", "where",
    }
)  # fmt: skip
"""Operations that make nothing that is not finite of values of a usual size; not where a weight or a buffer is among these."""
NOBODY = 0
_ENTRY = re.compile(r"L\[['\"](\w+)['\"]\]|\[['\"]?(\w+)['\"]?\]")
_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
_SOURCE = re.compile(r"\s*# File: (.+?):(\d+) in ")
_TYPED = re.compile(r'(\w+): "([^"]*)"')
_LINE = re.compile(r'\s+(\w+)(?:: "([^"]*)")? = ([^;]+)')
_TARGET = re.compile(r"torch\.ops\.\w+\.(\w+)")
_KEYWORD = re.compile(r"\b\w+ = ")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")


class Traced(NamedTuple):
    """An operation of the graph that dynamo has made: where it stands in the source, the module that it was called in, and
    the inputs of the graph that it uses, by their places."""

    source: str
    path: str
    uses: frozenset[int]


class Node(NamedTuple):
    target: str
    inputs: tuple[int, ...]
    paths: frozenset[str]
    """The module that it was called in; several where that is not certain, none where nobody says."""
    narrow: bool = False
    """Whether it is made in fp16, which holds nothing beyond 65504."""


class _Said(NamedTuple):
    """What the text says of an operation."""

    target: str
    inputs: tuple[int, ...]
    source: str
    narrow: bool


class Forward(NamedTuple):
    inputs: tuple[bool, ...]
    """The first nodes: of each whether it is a tensor."""
    nodes: tuple[Node, ...]
    """All of them, each behind those that it is made from."""
    returned: tuple[int, ...]
    """The outputs, and behind them what is saved; -1 of what is no node."""


class Witness(NamedTuple):
    saved: int
    """Its place among what is saved."""
    node: int
    block: int
    """The one to blame if it is not finite, and all witnesses before it are."""


# -- reading


def of_module(module: Any) -> Forward | None:
    """Of the graph itself, which says of each operation in which module it was called."""
    found = list(module.graph.nodes)
    if len(found) > MOST_NODES:
        return None
    places = {node: place for place, node in enumerate(found)}
    inputs, nodes, returned = [], [], ()
    for node in found:
        if node.op == "output":
            given = node.args[0]
            returned = tuple(places.get(each, -1) for each in (given if isinstance(given, (tuple, list)) else [given]))
            break
        if node.op == "placeholder":
            inputs.append(_is_tensor(node.meta.get("val")))
        path = path_of(node)
        made_from = tuple(places[each] for each in node.all_input_nodes)
        narrow = str(getattr(node.meta.get("val"), "dtype", "")) == "torch.float16"
        nodes.append(Node(_target(node.target), made_from, frozenset({path}) if path else frozenset(), narrow))
    return Forward(tuple(inputs), tuple(nodes), returned)


def path_of(node: Any) -> str:
    """The module that a node of a graph was called in, from wherever the graph begins: ``self.blocks.0``."""
    stack = node.meta.get("nn_module_stack") or {}
    last = next(reversed(list(stack.values())), None)
    return plain(str(last[0])) if isinstance(last, tuple) and last else ""


def plain(path: str) -> str:
    """``L['self'].blocks[0]`` is ``self.blocks.0``."""
    told = _ENTRY.sub(lambda found: f".{found[1] or found[2]}", path)
    return ".".join(part for part in told.split(".") if part not in ("", "_modules"))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dim") and hasattr(value, "dtype")


def _target(target: Any) -> str:
    packet = getattr(target, "overloadpacket", None)
    return str(getattr(packet, "__name__", None) or getattr(target, "__name__", "") or target)


def traced(module: Any) -> list[Traced]:
    """What dynamo has traced, in the order in which it runs."""
    found, places = [], {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            places[node] = len(places)
        elif node.op.startswith("call_"):
            frames = _FRAME.findall(node.stack_trace or "")
            source = ":".join(frames[-1]) if frames else ""
            uses = frozenset(places[each] for each in node.all_input_nodes if each in places)
            found.append(Traced(source, path_of(node), uses))
    return found


def of_text(text: str, operations: Sequence[Traced]) -> Forward | None:
    """Of a graph of which only the text is left: it has the lines of the source, and which inputs are used. The
    ``operations`` that it was made of come in the same order, and know their modules."""
    head, _, body = text[text.find("def forward(") :].partition("):\n")
    signature = _TYPED.findall(head)
    names = {name: place for place, (name, _) in enumerate(signature)}
    inputs = tuple("[" in kind and not kind.startswith("Sym") for _, kind in signature)
    found = [_Said("", (), "", False) for _ in signature]
    body, _, rest = body.partition("\n        return ")
    source = ""
    for line in body.splitlines():
        if (said := _SOURCE.match(line)) is not None:
            source = f"{said[1]}:{said[2]}"
        elif (made := _LINE.match(line)) is not None:
            target = _TARGET.match(made[3])
            arguments = _KEYWORD.sub("", made[3].partition("(")[2] if target is not None else made[3])
            used = (names[each] for each in _NAME.findall(arguments) if each in names)
            op = target[1] if target is not None else "getitem" if made[3].rstrip().endswith("]") else ""
            found.append(_Said(op, tuple(dict.fromkeys(used)), source, (made[2] or "").startswith("f16[")))
            names[made[1]] = len(found) - 1
    told = _placed(found, len(signature), operations) if len(found) <= MOST_NODES else None
    return Forward(inputs, told, tuple(names.get(each, -1) for each in _returned(rest))) if told else None


def _returned(rest: str) -> list[str]:
    """The names in a tuple that is one line, or one line each, with comments."""
    bare = (line.partition("#")[0] for line in rest.splitlines())
    return _NAME.findall(" ".join(bare).partition(")")[0])


def _placed(found: Sequence[_Said], inputs: int, operations: Sequence[Traced]) -> tuple[Node, ...] | None:
    """Each node with the module that it was called in. One that uses an input stands where an operation does that uses the
    same; what stands between two of these goes by its line. None where the two do not fit together."""
    anchors: list[int] = [-1] * len(found)
    of_input = _of_inputs([each.inputs for each in found], inputs)
    at = 0
    for place in range(inputs, len(found)):
        used = {of_input[each] for each in found[place].inputs if of_input[each] >= 0}
        if not used or of_input[place] >= 0:
            continue
        later = next((d for d in range(at, len(operations)) if used & operations[d].uses), None)
        if later is None:
            if any(used & each.uses for each in operations):
                return None
            continue  # one that dynamo's graph does not use by itself
        anchors[place] = at = later
    behind, after = len(operations) - 1, [0] * len(found)
    for place in reversed(range(len(found))):
        behind = anchors[place] if anchors[place] >= 0 else behind
        after[place] = behind
    at, nodes = 0, []
    for place, said in enumerate(found):
        at = anchors[place] if anchors[place] >= 0 else at
        within = operations[at : after[place] + 1] if anchors[place] < 0 else operations[at : at + 1]
        paths = {each.path for each in within if anchors[place] >= 0 or each.source == said.source}
        certain = frozenset(paths) if place >= inputs and "" not in paths else frozenset[str]()
        nodes.append(Node(said.target, said.inputs, certain, said.narrow))
    return tuple(nodes)


def _of_inputs(made_from: Sequence[Sequence[int]], inputs: int) -> list[int]:
    """Of each node the one input that it is made of and of nothing else, such as a weight in another shape; else -1."""
    found: list[int] = []
    for place, given in enumerate(made_from):
        if place < inputs:
            found.append(place)
            continue
        kinds = {found[each] for each in given}
        found.append(kinds.pop() if len(kinds) == 1 else -1)
    return found


# -- judging


class Judged(NamedTuple):
    """A ``Forward`` of which it is known what its inputs are."""

    behind: tuple[int, ...]
    """Of each node, as bits, itself and all that it is computed from; nothing of a constant, a weight, or what is one
    weight in another shape or type."""
    moves: int
    """Nodes, as bits, that only move values."""
    mild: int
    """Those that make nothing that is not finite."""


def judged(forward: Forward, weights: Collection[int], given: Collection[int]) -> Judged:
    """``weights``: inputs that are parameters; ``given``: those that somebody has computed. What is made of neither, such
    as a mask or a table of angles, is taken to be finite."""
    behind: list[int] = []
    sources: list[frozenset[int]] = []
    moves = mild = 0
    inputs = len(forward.inputs)
    for place, node in enumerate(forward.nodes):
        if place < inputs:
            behind.append(1 << place if place in given else 0)
            sources.append(frozenset((place,)) if forward.inputs[place] else frozenset())
            moves |= 1 << place if place not in given else 0
            continue
        source = frozenset().union(*(sources[each] for each in node.inputs))
        mask = 0
        for each in node.inputs:
            mask |= behind[each]
        mixed = len(source) > 1 or node.target == "embedding"
        computed = mask or (mixed and not source.isdisjoint(weights))
        behind.append(mask | 1 << place if computed else 0)
        # Two are enough to tell that it is mixed, as long as one of them is a weight if any is.
        sources.append(source if len(source) < 3 else frozenset(sorted(source, key=lambda x: x not in weights)[:2]))
        moves |= 1 << place if node.target in _MOVES else 0
        weighs = any(sources[each] and not behind[each] for each in node.inputs)
        mild |= 1 << place if node.target in _MILD and not weighs and not node.narrow else 0
    return Judged(tuple(behind), moves, mild)


def witnesses(
    known: Judged, outputs: Iterable[int], saved: Sequence[int], block_of: Callable[[int], int]
) -> list[Witness]:
    """Those of the nodes ``saved`` (-1: one that cannot be read) that tell the blocks apart, in the order of the forward;
    ``outputs`` are the nodes that somebody else goes on with, ``block_of`` a node is some number, or ``NOBODY``."""
    needed = 0
    for output in outputs:
        needed |= known.behind[output] if output >= 0 else 0
    usable = sorted((node, place) for place, node in enumerate(saved) if node >= 0 and needed >> node & 1)
    whole = _blamed(known, usable, block_of)
    fewer = _blamed(known, [(each.node, each.saved) for each in _last(known, whole)], block_of)
    same = [each.block for each in fewer] == [each.block for each in _last(known, whole)]
    return fewer if same else whole


def tail(known: Judged, outputs: Iterable[int], found: Sequence[Witness], block_of: Callable[[int], int]) -> int:
    """The block to blame where one of the ``outputs`` is not finite and all that was ``found`` is."""
    finite = wanted = 0
    for witness in found:
        finite |= known.behind[witness.node]
    for output in outputs:
        wanted |= known.behind[output] if output >= 0 else 0
    return _block(known, wanted & ~finite, block_of)


def _last(known: Judged, found: Sequence[Witness]) -> list[Witness]:
    """Without those from which another of the same block is made, with nothing between the two: it tells as much."""
    kept: list[Witness] = []
    for each in reversed(found):
        run = []
        for later in reversed(kept):
            if later.block != each.block:
                break
            run.append(later)
        if not any(known.behind[later.node] >> each.node & 1 for later in run):
            kept.append(each)
    return kept[::-1]


def _blamed(known: Judged, found: Iterable[tuple[int, int]], block_of: Callable[[int], int]) -> list[Witness]:
    finite, told = 0, []
    for node, place in found:
        told.append(Witness(place, node, _block(known, known.behind[node] & ~finite, block_of)))
        finite |= known.behind[node]
    return told


def _block(known: Judged, candidates: int, block_of: Callable[[int], int]) -> int:
    made = candidates & ~known.moves
    blocks = {block_of(node) for node in _bits(made & ~known.mild or made)}
    return blocks.pop() if len(blocks) == 1 else NOBODY


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
