"""The graph of a forward, as AOTAutograd has it: what is computed from what, in which module, and what is kept.

Enters: the graph, a module of torch's; or only its text, where compiled code came from a cache, and the graph of
dynamo's that it was made of. Leaves: a ``Forward``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from brickprof.capture import sites

MOST_NODES = 20_000
DELICATE = {
    "log": ("log",), "log2": ("log2",), "log10": ("log10",), "log1p": ("log1p",), "sqrt": ("sqrt",), "exp": ("exp",),
    "rsqrt": ("rsqrt",), "pow": ("pow", "__pow__", "ipow", "rpow"), "acos": ("acos", "arccos"),
    "asin": ("asin", "arcsin"), "atanh": ("atanh", "arctanh"),
    "div": ("div", "truediv", "itruediv", "divide", "true_divide"), "reciprocal": ("reciprocal", "truediv", "div"),
    "nll_loss": ("cross_entropy", "nll_loss"),
}  # fmt: skip
"""Operations that have no finite result of some values, and what a script may call them."""
_MEANS = frozenset({"nll_loss_forward", "nll_loss2d_forward"})
"""What is, in the end, a division by the number of targets: ``nll_loss`` here."""
_ENTRY = re.compile(r"L\[['\"](\w+)['\"]\]|\[['\"]?(\w+)['\"]?\]")
_AROUND = frozenset({"", "_modules", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
_SOURCE = re.compile(r"\s*# File: (.+?):(\d+) in ")
_NOWHERE = "# No stacktrace"
_TYPED = re.compile(r'(\w+): "([^"]*)"')
_LINE = re.compile(r'\s+(\w+)(?:: "([^"]*)")? = ([^;]+)')
_TARGET = re.compile(r"torch\.ops\.\w+\.(\w+)")
_KEYWORD = re.compile(r"\b\w+ = ")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")


class Node(NamedTuple):
    target: str
    inputs: tuple[int, ...]
    paths: frozenset[str]
    """The module that it was called in; several where that is not certain, none where nobody says."""
    narrow: bool = False
    """Whether it is made in fp16, which holds nothing beyond 65504."""
    asked: str = ""
    """The line that asked for just this operation, if it is one that has no finite result of some values: not for one
    that it is a part of, as a division is of a softmax."""


class Forward(NamedTuple):
    inputs: tuple[bool, ...]
    """The first nodes: of each whether it is a tensor."""
    nodes: tuple[Node, ...]
    """All of them, each behind those that it is made from."""
    returned: tuple[int, ...]
    """The outputs, and behind them what is kept; -1 of what is no node."""


class Traced(NamedTuple):
    """An operation of dynamo's graph."""

    source: str
    """Where it stands."""
    path: str
    uses: frozenset[int]
    """The inputs of the graph that it uses and that are parameters, by their places."""
    name: str = ""


class _Said(NamedTuple):
    """What a text says of an operation."""

    target: str
    inputs: tuple[int, ...]
    source: str
    narrow: bool


# -- the graph itself


def of_module(module: Any) -> Forward | None:
    """It says of each operation in which module it was called."""
    found = list(module.graph.nodes)
    if len(found) > MOST_NODES:
        return None
    places = {node: place for place, node in enumerate(found)}
    inputs, nodes = [], []
    returned: tuple[int, ...] = ()
    for node in found:
        if node.op == "output":
            given = node.args[0]
            returned = tuple(places.get(each, -1) for each in (given if isinstance(given, (tuple, list)) else [given]))
            break
        value, path = node.meta.get("val"), path_of(node)
        if node.op == "placeholder":
            inputs.append(hasattr(value, "dim"))
        made_from = tuple(places[each] for each in node.all_input_nodes)
        paths, narrow = frozenset({path} if path else ()), str(getattr(value, "dtype", "")) == "torch.float16"
        target = _called(node)
        nodes.append(Node(target, made_from, paths, narrow, _asked(node, target)))
    return Forward(tuple(inputs), tuple(nodes), returned)


def _called(node: Any) -> str:
    target, original = _target(node.target), node.meta.get("original_aten")
    of_mean = target in _MEANS or (target == "div" and original is not None and _target(original) in _MEANS)
    return "nll_loss" if of_mean else target


def _asked(node: Any, target: str) -> str:
    original = node.meta.get("original_aten")
    part = original is not None and _target(original) not in {target, *_MEANS}
    if target not in DELICATE or part:
        return ""
    frames = reversed(_FRAME.findall(node.stack_trace or ""))
    return next((":".join(frame) for frame in frames if sites.users(frame[0])), "")


def path_of(node: Any) -> str:
    """The module that a node was called in, from wherever the graph begins: ``self.blocks.0``."""
    stack = node.meta.get("nn_module_stack") or {}
    last = next(reversed(list(stack.values())), None)
    return plain(str(last[0])) if isinstance(last, tuple) and last else ""


def plain(path: str) -> str:
    """``L['self'].blocks[0]`` is ``self.blocks.0``."""
    told = _ENTRY.sub(lambda found: f".{found[1] or found[2]}", path)
    return ".".join(part for part in told.split(".") if part not in _AROUND)


def _target(target: Any) -> str:
    packet = getattr(target, "overloadpacket", None)
    return str(getattr(packet, "__name__", None) or getattr(target, "__name__", "") or target)


# -- its text


def traced(module: Any, parameters: Collection[int]) -> list[Traced]:
    """What dynamo has traced, in the order in which it runs; ``parameters``: which of its inputs are."""
    found: list[Traced] = []
    places: dict[Any, int] = {}
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    places = {node: place for place, node in enumerate(inputs) if place in parameters}
    for node in module.graph.nodes:
        if node.op.startswith("call_"):
            frames = _FRAME.findall(node.stack_trace or "")
            uses = frozenset(places[each] for each in node.all_input_nodes if each in places)
            name = node.target if isinstance(node.target, str) else _target(node.target)
            found.append(Traced(":".join(frames[-1]) if frames else "", path_of(node), uses, name))
    return found


def of_text(text: str, operations: Sequence[Traced]) -> Forward | None:
    """A text has the lines of the source and no modules; the ``operations`` that it was made of come in the same order,
    and know theirs."""
    head, _, rest = text[text.find("def forward(") :].partition("):\n")
    body, _, end = rest.partition("\n        return ")
    signature = _TYPED.findall(head)
    names = {name: place for place, (name, _) in enumerate(signature)}
    found = [_Said("", (), "", narrow=False) for _ in signature]
    source = ""
    for line in body.splitlines():
        if (said := _SOURCE.match(line)) is not None:
            source = f"{said[1]}:{said[2]}"
        elif line.lstrip().startswith(_NOWHERE):
            source = ""
        elif (made := _LINE.match(line)) is not None:
            name, kind, value = made.groups()
            found.append(_operation(value, kind or "", source, names))
            names[name] = len(found) - 1
    told = _placed(found, len(signature), operations) if len(found) <= MOST_NODES else None
    if told is None:
        return None
    inputs = tuple("[" in kind and not kind.startswith("Sym") for _, kind in signature)
    return Forward(inputs, told, tuple(names.get(each, -1) for each in _returned(end)))


def _operation(value: str, kind: str, source: str, names: dict[str, int]) -> _Said:
    target = _TARGET.match(value)
    arguments = _KEYWORD.sub("", value.partition("(")[2] if target is not None else value)
    used = dict.fromkeys(names[each] for each in _NAME.findall(arguments) if each in names)
    of_several = "getitem" if value.rstrip().endswith("]") else ""
    return _Said(target[1] if target is not None else of_several, tuple(used), source, kind.startswith("f16["))


def _returned(rest: str) -> list[str]:
    """The names in a tuple that is one line, or one line each, with comments."""
    bare = (line.partition("#")[0] for line in rest.splitlines())
    return _NAME.findall(" ".join(bare).partition(")")[0])


def _placed(found: Sequence[_Said], inputs: int, operations: Sequence[Traced]) -> tuple[Node, ...] | None:
    """Each node with the module that it was called in. One that uses a parameter stands where the next operation does
    that uses it, in the same line; what stands between two of these goes by its line. None where the two do not fit."""
    anchors = _anchored(found, inputs, operations)
    if anchors is None:
        return None
    last, after = len(operations) - 1, [0] * len(found)
    for place in reversed(range(len(found))):
        last = after[place] = max(anchors[place], -1) if anchors[place] >= 0 else last
    asked: dict[str, set[str]] = {}
    for each in operations:
        if sites.users(each.source.rpartition(":")[0]):
            asked.setdefault(each.source, set()).add(each.name)
    at, nodes = 0, []
    for place, said in enumerate(found):
        if anchors[place] >= 0:
            at = anchors[place]
            paths = {operations[at].path}
        else:
            paths = {each.path for each in operations[at : after[place] + 1] if each.source == said.source}
        certain = place >= inputs and "" not in paths
        target = _meant(said.target, asked.get(said.source, ()))
        asks = said.source if target in DELICATE and _calls(target, asked.get(said.source, ())) else ""
        nodes.append(Node(target, said.inputs, frozenset(paths if certain else ()), said.narrow, asks))
    return tuple(nodes)


def _meant(target: str, called: Collection[str]) -> str:
    """Whether a division is that of a mean, where no other is ``called`` in its line."""
    of_mean = target in _MEANS or (target == "div" and not _calls("div", called) and _calls("nll_loss", called))
    return "nll_loss" if of_mean else target


def _calls(target: str, called: Collection[str]) -> bool:
    return any(name in called for name in DELICATE[target])


def _anchored(found: Sequence[_Said], inputs: int, operations: Sequence[Traced]) -> list[int] | None:
    """The operation of each node that uses a parameter; -1 of the others."""
    where: dict[int, list[int]] = {}
    for at, operation in enumerate(operations):
        for used in operation.uses:
            where.setdefault(used, []).append(at)
    anchors, of_input, at = [-1] * len(found), _of_inputs(found, inputs), 0
    for place in range(inputs, len(found)):
        of = {of_input[each] for each in found[place].inputs} if of_input[place] < 0 else set[int]()
        for each in of & where.keys():
            same = (d for d in where[each] if d >= at and operations[d].source == found[place].source)
            at = anchors[place] = next(same, -1)
            if at < 0:
                return None
    return anchors


def _of_inputs(found: Sequence[_Said], inputs: int) -> list[int]:
    """Of each node the one input that it is made of and of nothing else, such as a weight in another shape; else -1."""
    told = list(range(inputs))
    for said in found[inputs:]:
        of = {told[each] for each in said.inputs}
        told.append(of.pop() if len(of) == 1 else -1)
    return told
