"""What the source of a Triton kernel says of its strides: by which size the index of each is bounded, and whether they
may be in another unit than the tensor's.

Enters: the function. Leaves: of each argument that an index is multiplied with, the arguments that bound this index, by
a mask or a modulus, or as the shape of a block pointer; whether it casts a pointer; nothing where the source is not at
hand. In

    rows = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) % m
    tl.load(a + rows[:, None] * stride_am + ..., mask=inner[None, :] < k - step * BLOCK)

``stride_am`` goes with ``m``. Names alone do not say so: kernels name their sizes and strides as they like.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterator
from typing import Any

Pair = tuple[str, str]
_MOST_LETTERS = 100_000


def bounds(function: Any, names: Collection[str]) -> dict[str, list[str]]:
    """By stride, the sizes that bound its index; ``names`` are the whole numbers that the function is given."""
    tree = _parsed(function)
    return bounds_in(tree, names) if tree is not None else {}


def casts(function: Any) -> bool:
    """Whether it makes a pointer of another type of one it was given, as far as is written there: int8 as int32."""
    tree = _parsed(function)
    return tree is not None and any(_casts(node) for node in ast.walk(tree))


def _parsed(function: Any) -> ast.AST | None:
    try:
        source = textwrap.dedent(inspect.getsource(function))
        return ast.parse(source) if len(source) <= _MOST_LETTERS else None
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


def _casts(node: ast.AST) -> bool:
    """``tl.pointer_type(tl.int32)``, ``a.to(tl.int32, bitcast=True)``."""
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    asked = [each.value for each in node.keywords if each.arg == "bitcast"]
    return name == "pointer_type" or any(getattr(value, "value", True) is not False for value in asked)


def bounds_in(tree: ast.AST, names: Collection[str]) -> dict[str, list[str]]:
    nodes = list(ast.walk(tree))
    names = set(names) - {name for node in nodes for name in _changed(node)}
    limits = {pair for node in nodes for pair in _limits(node) if pair[1] in names}
    found = {pair for node in nodes for pair in _shaped(node) if names.issuperset(pair)}
    for node in nodes:
        for index, stride in _scaled(node, names):
            found |= {(stride, size) for limited, size in limits if limited == index}
    return {stride: sorted(size for of, size in found if of == stride) for stride in sorted({of for of, _ in found})}


def _limits(node: ast.AST) -> Iterator[Pair]:
    """An index and what it stays below."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt):
        yield from _pair(node.left, node.comparators[0])
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Gt):
        yield from _pair(node.comparators[0], node.left)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        for part in ast.walk(node.value):
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                yield from _pair(node.targets[0], part.right)


def _pair(index: ast.expr, limit: ast.expr) -> Iterator[Pair]:
    while isinstance(limit, ast.BinOp) and isinstance(limit.op, ast.Sub):
        limit = limit.left
    if isinstance(limit, ast.Name):
        yield from ((each, limit.id) for each in _roots(index))


def _scaled(node: ast.AST, names: Collection[str]) -> Iterator[Pair]:
    """An index and the number that it is multiplied with."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for index, stride in ((node.left, node.right), (node.right, node.left)):
            if isinstance(stride, ast.Name) and stride.id in names:
                yield from ((each, stride.id) for each in _roots(index))


def _shaped(node: ast.AST) -> Iterator[Pair]:
    """Strides and sizes of a block pointer."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "make_block_ptr":
        given = dict(zip(("base", "shape", "strides"), node.args, strict=False))
        given |= {each.arg: each.value for each in node.keywords if each.arg}
        listed = [getattr(given.get(name), "elts", []) for name in ("strides", "shape")]
        for stride, size in zip(*listed, strict=False):
            if isinstance(stride, ast.Name) and isinstance(size, ast.Name):
                yield stride.id, size.id


def _changed(node: ast.AST) -> Iterator[str]:
    """Names that mean something else from here on; ``n = n.to(tl.int64)`` means the same."""
    if isinstance(node, ast.Assign):
        of = _roots(node.value)
        stored = (each for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name))
        yield from (each.id for each in stored if of != [each.id])
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.NamedExpr)) and isinstance(node.target, ast.Name):
        yield node.target.id


def _roots(node: ast.expr) -> list[str]:
    """The variables behind ``rows[:, None]``, ``rows.to(tl.int64)`` and ``step * BLOCK + rows``."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Subscript):
        return _roots(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
        return _roots(node.func.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _roots(node.left) + _roots(node.right)
    return []
