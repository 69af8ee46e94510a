"""The loops around a line that runs: what they run over, and how many rounds that gives.

Enters: a frame. Leaves: a ``Loop`` for each ``for``, ``while`` and comprehension around the line it stands at, outer
ones first, as the source has them. A number is taken from the source, from the top of a module, or from an object of
settings; nothing is called. Before Python 3.13 the variables of a function are not read (its frame would keep a copy
of them): there a name counts where the function gives it one value in one place.
"""

from __future__ import annotations

import ast
import functools
import linecache
import operator
import os
import sys
from types import FrameType
from typing import Any, NamedTuple

from brickprof.capture import sites
from brickprof.capture.plain import own

_FRAMES, _DEEPEST, _LONGEST = 60, 6, 60
_LARGEST = 1 << 18
_WITHOUT_A_COPY = sys.version_info >= (3, 13)
_THROUGH = frozenset({"enumerate", "tqdm"})
"""Calls that hand out what they are given, one by one."""
_RANGES = frozenset({"range", "trange"})
_SUMS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LEAVES = (ast.Break, ast.Return)


class Loop(NamedTuple):
    over: str
    """What it runs over, as it is written."""
    rounds: int | None = None
    """How many rounds that gives, where it is plain to see."""
    site: str = ""
    exhausts: bool = False
    """It runs over something with a name, and nothing in it leaves it before that is used up."""


class _Place(NamedTuple):
    """Where names have a meaning."""

    frame: FrameType
    function: ast.AST | None


def around(frame: FrameType | None) -> list[Loop]:
    """The loops around the user's line that led here, through all who called it."""
    found: list[Loop] = []
    begun = False
    for _ in range(_FRAMES):
        if frame is None:
            return found
        if sites.users(frame.f_code.co_filename):
            begun = True
            found = [*of_frame(frame), *found]
        frame = frame.f_back
    return [Loop("a deep stack"), *found] if begun else []


def of_frame(frame: FrameType) -> list[Loop]:
    name = frame.f_code.co_name
    if name == "<lambda>":
        return []
    tree = _parsed(frame.f_code.co_filename)
    if tree is None:
        return [Loop("unknown", site=sites.line(frame))]
    if name.startswith("<") and name != "<module>":  # the frame of a comprehension: who called it names it too
        written = [_written(node) for node in _around(tree, frame.f_lineno) if isinstance(node, _COMPREHENSIONS)]
        return [Loop(written[-1] if written else "unknown", site=sites.line(frame))]
    found: list[ast.AST] = []
    function: ast.AST | None = None
    for node in _around(tree, frame.f_lineno):
        if isinstance(node, _FUNCTIONS) and node.name == name:
            found, function = [], node
        elif isinstance(node, _COMPREHENSIONS) or _holds(node, frame.f_lineno):
            found.append(node)
    return [_loop(node, _Place(frame, function)) for node in found]


def forget() -> None:
    _parsed.cache_clear()


@functools.lru_cache(maxsize=16)
def _parsed(file: str) -> ast.Module | None:
    text = "".join(linecache.getlines(file))
    try:
        return ast.parse(text) if 0 < len(text) <= _LARGEST else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _around(node: ast.AST, line: int) -> list[ast.AST]:
    """All nodes below ``node`` that ``line`` lies in, outer ones before inner ones."""
    found = []
    for child in ast.iter_child_nodes(node):
        first, last = getattr(child, "lineno", None), getattr(child, "end_lineno", None)
        if first is None or last is None:
            found += _around(child, line)
        elif first <= line <= last:
            found += [child, *_around(child, line)]
    return found


def _holds(node: ast.AST, line: int) -> bool:
    if not isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
        return False
    return node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)


def _loop(node: ast.AST, place: _Place) -> Loop:
    file = os.path.basename(place.frame.f_code.co_filename)
    site = f"{file}:{getattr(node, 'lineno', 0)}"
    if not isinstance(node, ast.For):
        return Loop("while" if isinstance(node, ast.While) else _written(node), site=site)
    over = _inside(node.iter)
    leaves = any(isinstance(each, _LEAVES) for line in node.body for each in ast.walk(line))
    named = isinstance(over, (ast.Name, ast.Attribute))
    return Loop(ast.unparse(node.iter)[:_LONGEST], _rounds(over, place), site, named and not leaves)


def _written(node: ast.AST) -> str:
    """What a comprehension runs over."""
    over = ", ".join(ast.unparse(each.iter) for each in getattr(node, "generators", ()))
    return over[:_LONGEST] or "unknown"


def _inside(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call) and _called(node) in _THROUGH and node.args:
        node = node.args[0]
    return node


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _rounds(node: ast.expr, place: _Place) -> int | None:
    if isinstance(node, ast.Call):
        if _called(node) not in _RANGES or not 1 <= len(node.args) <= 3 or _own_name(_called(node), place):
            return None
        numbers = [_value(each, place) for each in node.args]
        return _length(numbers) if all(type(each) is int for each in numbers) else None
    if isinstance(node, (ast.List, ast.Tuple)):
        return None if any(isinstance(each, ast.Starred) for each in node.elts) else len(node.elts)
    held = _value(node, place)
    return len(held) if type(held) in (list, tuple, dict, range) else None


def _length(numbers: list[Any]) -> int | None:
    try:
        return len(range(*numbers))
    except (ValueError, OverflowError):
        return None


def _own_name(name: str, place: _Place) -> bool:
    """Whether the script calls something else by the name of a function of Python's."""
    return name == "range" and (name in place.frame.f_globals or name in place.frame.f_code.co_varnames)


def _value(node: ast.AST, place: _Place, depth: int = 0) -> Any:
    """What an expression holds, where it is plain to see; None otherwise."""
    if depth > _DEEPEST:
        return None
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return _named(node.id, place, depth)
    if isinstance(node, ast.Attribute):
        return _held(_value(node.value, place, depth + 1)).get(node.attr)
    if isinstance(node, ast.Subscript):
        base, key = _value(node.value, place, depth + 1), _value(node.slice, place, depth + 1)
        return base.get(key) if type(base) is dict and type(key) is str else None
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        left, right = _value(node.left, place, depth + 1), _value(node.right, place, depth + 1)
        whole = type(left) is int and type(right) is int and (right or not isinstance(node.op, ast.FloorDiv))
        return _SUMS[type(node.op)](left, right) if whole else None
    return None


def _held(value: Any) -> Any:
    """The attributes of an object, a module or a class."""
    return type.__getattribute__(value, "__dict__") if isinstance(value, type) else own(value)


def _named(name: str, place: _Place, depth: int) -> Any:
    frame, code = place.frame, place.frame.f_code
    if _WITHOUT_A_COPY and name in frame.f_locals:
        return frame.f_locals[name]
    if name in code.co_varnames or name in code.co_cellvars:
        return _assigned(name, place, depth)
    return None if name in code.co_freevars else frame.f_globals.get(name)


def _assigned(name: str, place: _Place, depth: int) -> Any:
    """The value of a variable of the function, where it is no parameter and given in one place."""
    if place.function is None or name in _parameters(place.function):
        return None
    nodes = list(ast.walk(place.function))
    stores = [each for each in nodes if isinstance(each, ast.Name) and each.id == name
              and not isinstance(each.ctx, ast.Load)]  # fmt: skip
    values = [each.value for each in nodes if isinstance(each, ast.Assign) and len(each.targets) == 1
              and each.targets[0] in stores]  # fmt: skip
    return _value(values[0], place, depth + 1) if len(stores) == len(values) == 1 else None


def _parameters(function: ast.AST) -> set[str]:
    return {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
