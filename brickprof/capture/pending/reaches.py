"""Which of its arguments a Triton kernel reaches for certain, as far as its source says.

Enters: the function. Leaves: the names of the pointers that it loads from or stores to whenever it runs:

    x = tl.load(x_ptr + at, mask=at < n)            x_ptr
    rows = a + at; for ...: tl.load(rows)           a: a loop is taken to run
    if HAS_BIAS: tl.load(bias + at)                 not bias
    tl.load(one if which == 0 else other)           neither
    helper(x_ptr, at)                               not x_ptr: nobody looks into another function

A kernel that is handed a tensor may leave it alone: a buffer that is another one's turn, a stand-in for what is absent.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MOST_LETTERS = 100_000
_ACCESSES = frozenset({"load", "store"})
_ATOMIC = "atomic_"
_SAME = frozenset({"advance", "make_block_ptr", "multiple_of", "max_contiguous", "to"})
"""Calls whose result points where their first argument does."""
Roots = Mapping[str, frozenset[str]]
"""By variable, the arguments that it points into."""
_NONE: frozenset[str] = frozenset()


def reached(function: Any) -> frozenset[str]:
    """Nothing where the source is not at hand."""
    try:
        return _reached(getattr(function, "fn", function))
    except Exception:  # sources are of any kind
        return _NONE


@functools.lru_cache(maxsize=256)
def _reached(function: Any) -> frozenset[str]:
    source = textwrap.dedent(inspect.getsource(function))
    if len(source) > _MOST_LETTERS:
        return _NONE
    (made,) = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    names = [each.arg for each in (*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs)]
    return _in_block(made.body, {name: frozenset({name}) for name in names})[0]


def _in_block(block: Sequence[ast.stmt], roots: Roots) -> tuple[frozenset[str], Roots]:
    """What a block reaches for certain, and what its variables point into behind it."""
    found = _NONE
    for statement in block:
        if isinstance(statement, ast.If):
            found |= _accessed(statement.test, roots)
            (one, after), (other, otherwise) = (_in_block(part, roots) for part in (statement.body, statement.orelse))
            found |= one & other
            roots = {name: after.get(name, _NONE) & otherwise.get(name, _NONE) for name in {*after, *otherwise}}
        elif isinstance(statement, (ast.For, ast.With)):
            inside, roots = _in_block(statement.body, roots)
            found |= inside
        elif isinstance(statement, ast.While):
            found |= _accessed(statement.test, roots)
            roots = _in_block(statement.body, roots)[1]
        else:
            found |= _accessed(statement, roots)
            roots = {**roots, **_pointed(statement, roots)}
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            break
    return found, roots


def _pointed(statement: ast.stmt, roots: Roots) -> dict[str, frozenset[str]]:
    """The variables that a statement sets, with what they point into."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets: list[ast.expr] = [statement.target]
        value = statement.value
    elif isinstance(statement, ast.Assign):
        targets, value = list(statement.targets), statement.value
    else:  # what is added to a pointer points where it did
        return {}
    if len(targets) == 1 and isinstance(targets[0], ast.Name):
        return {targets[0].id: _root(value, roots)}
    return {node.id: _NONE for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def _root(value: ast.expr, roots: Roots) -> frozenset[str]:
    if isinstance(value, ast.Name):
        return roots.get(value.id, _NONE)
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub)):
        return _root(value.left, roots) | _root(value.right, roots)
    if isinstance(value, ast.Call) and _called(value) in _SAME:
        given = next((each.value for each in value.keywords if each.arg == "base"), None)
        first = value.args[0] if value.args else given
        if isinstance(value.func, ast.Attribute) and _called(value) == "to":
            first = value.func.value
        return _NONE if first is None else _root(first, roots)
    return _NONE


def _accessed(node: ast.AST, roots: Roots) -> frozenset[str]:
    found = _NONE
    for call in _certain_calls(node):
        name = _called(call)
        if name in _ACCESSES or name.startswith(_ATOMIC):
            given = next((each.value for each in call.keywords if each.arg == "pointer"), None)
            first = call.args[0] if call.args else given
            found |= _NONE if first is None else _root(first, roots)
    return found


def _certain_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Calls that are made whenever ``node`` is come to."""
    if isinstance(node, ast.Call):
        yield node
    if isinstance(node, ast.IfExp):
        below: list[ast.AST] = [node.test]
    elif isinstance(node, ast.BoolOp):
        below = [node.values[0]]
    elif isinstance(node, (ast.Lambda, ast.FunctionDef, ast.ListComp, ast.GeneratorExp)):
        below = []
    else:
        below = list(ast.iter_child_nodes(node))
    for each in below:
        yield from _certain_calls(each)


def _called(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
