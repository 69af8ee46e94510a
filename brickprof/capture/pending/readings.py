"""Whether the script's own lines read an array that they took, from what is written there.

Enters: where an array was taken (a ``Site``) and how many dimensions it has, and where what ended its time was asked
for. Leaves: a ``Reading``.

    host.numpy()[0], float(host.numpy().sum()), np.mean(host)          read, at once
    array = host.numpy(); total = array.sum()                          read: nothing stands between the two
    host.numpy().nbytes, array = host.numpy(); array.shape             asked about, not read
    array = host.numpy(); if ready: array.sum(); self.array = array    nobody knows
    host.numpy()[slot], for row in host.numpy()                        of a matrix a view: nobody knows

Only what is certain to run counts as read: lines of the same block that follow, up to the first that may leave it, as
each call may by what it raises.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from brickprof.capture.pending.stacks import Site

_TAKES = frozenset({"numpy", "asarray", "asanyarray", "from_dlpack"})
"""Calls whose result is the array itself."""
_FACTS = frozenset({
    "nbytes", "shape", "dtype", "ndim", "size", "itemsize", "strides", "flags", "ctypes", "base", "setflags",
    "__array_interface__", "__len__", "__sizeof__", "__class__",
})  # fmt: skip
"""What is asked of an array without a look at what it holds."""
_VIEWS = frozenset({
    "T", "mT", "view", "reshape", "ravel", "squeeze", "transpose", "swapaxes", "diagonal", "getfield", "__array__",
})  # fmt: skip
_ASKING = frozenset({
    "len", "id", "type", "isinstance", "hasattr", "getsizeof", "shape", "ndim", "size", "shares_memory",
    "may_share_memory", "byte_bounds", "empty_like", "zeros_like", "ones_like", "full_like", "result_type",
})  # fmt: skip
_READING = frozenset({
    "float", "int", "bool", "complex", "sum", "max", "min", "any", "all", "print", "str", "repr", "bytes", "bytearray",
})  # fmt: skip
_ITERATING = frozenset({"list", "tuple", "set", "sorted"})
"""Read what has one dimension; of more they make views."""
_METHODS = frozenset({
    "sum", "mean", "max", "min", "std", "var", "prod", "item", "tolist", "copy", "tobytes", "any", "all", "argmax",
    "argmin", "cumsum", "cumprod", "dot", "nonzero", "round", "clip", "astype", "flatten", "tofile", "dump", "dumps",
    "take", "repeat", "argsort", "trace", "ptp", "searchsorted",
})  # fmt: skip
"""Of an array, those that read it; ``astype`` and the like where no option keeps them from it."""
_OPTIONAL = frozenset({"astype"})
_NUMPY = frozenset({"np", "numpy"})
_READING_NUMPY = frozenset({
    "array", "copy", "sum", "mean", "max", "min", "amax", "amin", "std", "var", "median", "prod", "cumsum", "dot",
    "matmul", "isnan", "isinf", "isfinite", "any", "all", "allclose", "array_equal", "argmax", "argmin", "sort",
    "argsort", "percentile", "quantile", "save", "savez", "concatenate", "stack", "vstack", "hstack", "sqrt", "exp",
    "log", "abs", "square", "norm", "nan_to_num", "clip", "add", "subtract", "multiply", "divide", "unique",
    "histogram", "float32", "float64", "int64", "count_nonzero", "nonzero", "nansum", "nanmean", "nanmax", "nanmin",
})  # fmt: skip
_LEAVING = (ast.Return, ast.Raise, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Await)
_LATER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.FunctionDef, ast.AsyncFunctionDef)
_AT_ONCE = (ast.Assign, ast.AugAssign, ast.Expr)
"""Statements that read what they name before they change it."""
_UNKNOWN = 64
"""More dimensions than an array can have."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Reading(Enum):
    READ = "read"
    ASKED = "asked"
    UNKNOWN = "unknown"


class _Taken(NamedTuple):
    """An array as it was taken."""

    site: Site
    until: Site
    dimensions: int


class _Source(NamedTuple):
    tree: ast.Module
    above: dict[ast.AST, ast.AST]
    calls: dict[tuple[int, int], ast.Call]
    """By where they end."""


@functools.lru_cache(maxsize=256)
def of(site: Site, until: Site = (), *, dimensions: int = 1) -> Reading:
    """What became of the array that was taken at ``site``, before ``until`` was come to."""
    try:
        return _became(_Taken(site, until, dimensions))
    except Exception:  # sources are of any kind
        return Reading.UNKNOWN


def _became(taken: _Taken) -> Reading:
    found = _call(taken.site)
    if found is None:
        return Reading.UNKNOWN
    source, call = found
    return _used(source, call, taken) if _name(call.func) in _TAKES else _given(call, taken)


def _call(site: Site) -> tuple[_Source, ast.Call] | None:
    """The call that the innermost line of ``site`` is in."""
    if not site:
        return None
    code, at = site[0]
    source = _source(code.co_filename)
    _, line, _, column = list(code.co_positions())[at // 2]
    call = source.calls.get((line or 0, column or 0))
    return None if call is None else (source, call)


@functools.lru_cache(maxsize=8)
def _source(name: str) -> _Source:
    tree = ast.parse("".join(linecache.getlines(name)))
    above = {below: node for node in ast.walk(tree) for below in ast.iter_child_nodes(node)}
    calls = {_end(node): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return _Source(tree, above, calls)


def _end(node: ast.Call) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


# -- what is done with a value


def _used(source: _Source, node: ast.AST, taken: _Taken) -> Reading:
    """What the expression or statement around ``node``, an array, does with it."""
    over = source.above[node]
    if isinstance(over, ast.Attribute):
        return _asked_for(source, over, taken)
    if isinstance(over, ast.Subscript) and over.value is node:
        return _indexed(source, over, taken)
    if isinstance(over, ast.Call):
        return _given(over, taken)
    if isinstance(over, ast.Compare):
        return Reading.ASKED if all(isinstance(each, (ast.Is, ast.IsNot)) for each in over.ops) else Reading.READ
    if isinstance(over, (ast.BinOp, ast.UnaryOp, ast.AugAssign, ast.FormattedValue)):
        return Reading.READ
    if isinstance(over, (ast.For, ast.comprehension)):
        return Reading.READ if over.iter is node and taken.dimensions == 1 else Reading.UNKNOWN
    if isinstance(over, (ast.If, ast.While, ast.IfExp, ast.Assert)):
        return Reading.READ if over.test is node else Reading.UNKNOWN
    if isinstance(over, ast.Expr):
        return Reading.ASKED
    if isinstance(over, ast.Return):
        return _returned(source, over, taken)
    if isinstance(over, ast.Assign) and len(over.targets) == 1 and isinstance(over.targets[0], ast.Name):
        return _kept(source, over, over.targets[0].id, taken)
    return Reading.UNKNOWN


def _indexed(source: _Source, subscript: ast.Subscript, taken: _Taken) -> Reading:
    """A value where each dimension has a number; else a view, as far as anybody knows."""
    index = subscript.slice
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if not isinstance(subscript.ctx, ast.Load):
        return Reading.READ  # it is written
    if _slices(index):
        return _used(source, subscript, taken)
    return Reading.READ if sum(map(_number, parts)) >= taken.dimensions else Reading.UNKNOWN


def _number(part: ast.expr) -> bool:
    if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
        part = part.operand
    return isinstance(part, ast.Constant) and type(part.value) is int


def _asked_for(source: _Source, attribute: ast.Attribute, taken: _Taken) -> Reading:
    over = source.above[attribute]
    called = isinstance(over, ast.Call) and over.func is attribute
    if attribute.attr in _FACTS:
        return Reading.ASKED
    if attribute.attr in _VIEWS:
        return _used(source, over if called else attribute, taken._replace(dimensions=_UNKNOWN))
    if not isinstance(over, ast.Call) or not called or attribute.attr not in _METHODS:
        return Reading.UNKNOWN
    return Reading.UNKNOWN if attribute.attr in _OPTIONAL and over.keywords else Reading.READ


def _given(call: ast.Call, taken: _Taken) -> Reading:
    """What a call does with an array that it is given."""
    name = _name(call.func)
    if name in _ASKING:
        return Reading.ASKED
    if isinstance(call.func, ast.Name):
        reads = name in _READING or (name in _ITERATING and taken.dimensions == 1)
        return Reading.READ if reads else Reading.UNKNOWN
    copies = name != "array" or all(keyword.arg == "dtype" for keyword in call.keywords)
    return Reading.READ if _of_numpy(call.func) and name in _READING_NUMPY and copies else Reading.UNKNOWN


def _returned(source: _Source, statement: ast.Return, taken: _Taken) -> Reading:
    if not isinstance(_scope(source, statement), ast.FunctionDef):
        return Reading.UNKNOWN
    found = _call(taken.site[1:])
    if found is None or _name(found[1].func) != taken.site[0][0].co_name:
        return Reading.UNKNOWN
    return _used(*found, taken._replace(site=taken.site[1:]))


# -- what is done with a name


def _kept(source: _Source, statement: ast.stmt, name: str, taken: _Taken) -> Reading:
    """What is done with an array that a variable holds."""
    file = taken.site[0][0].co_filename
    for following in _after(source, statement):
        leaves = any(isinstance(node, _LEAVING) for node in ast.walk(following))
        if _holds(following, file, taken.until) or (leaves and not isinstance(following, ast.Return)):
            break
        changes = _changes(following, name)
        if changes and not isinstance(following, _AT_ONCE):
            break
        for use in _uses(following, name):
            if _certain(source, use, following) and _used(source, use, taken) is Reading.READ:
                return Reading.READ
        if leaves or changes or any(isinstance(node, ast.Call) for node in ast.walk(following)):
            break
    uses = list(_uses(_scope(source, statement), name))
    only_asked = all(_plainly_asked(source, use, taken) for use in uses)
    return Reading.ASKED if only_asked else Reading.UNKNOWN


def _plainly_asked(source: _Source, use: ast.Name, taken: _Taken) -> bool:
    over = source.above[use]
    if isinstance(over, ast.Attribute):
        return over.attr in _FACTS
    return isinstance(over, ast.Call) and _given(over, taken) is Reading.ASKED


def _after(source: _Source, statement: ast.stmt) -> list[ast.stmt]:
    """The statements that follow in the same block."""
    over = source.above[statement]
    for field in ("body", "orelse", "finalbody"):
        block = getattr(over, field, None)
        if isinstance(block, list) and statement in block:
            return block[block.index(statement) + 1 :]
    return []


def _uses(node: ast.AST, name: str) -> Iterator[ast.Name]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load):
            yield each


def _changes(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and not isinstance(each.ctx, ast.Load) for each in ast.walk(node)
    )


def _certain(source: _Source, use: ast.AST, statement: ast.stmt) -> bool:
    """Whether ``use`` is come to whenever ``statement`` is."""
    node = use
    while node is not statement:
        over = source.above[node]
        if isinstance(over, _LATER) or (isinstance(over, ast.IfExp) and over.test is not node):
            return False
        if isinstance(over, ast.BoolOp) and over.values[0] is not node:
            return False
        if isinstance(over, (ast.If, ast.While)) and over.test is not node:
            return False
        if isinstance(over, ast.For) and over.iter is not node:
            return False
        if isinstance(over, (*_FUNCTIONS, ast.AsyncFor, ast.Try, ast.Match, ast.Assert)):
            return False
        node = over
    return True


def _scope(source: _Source, node: ast.AST) -> ast.AST:
    while not isinstance(node, _SCOPES):
        node = source.above[node]
    return node


def _holds(statement: ast.stmt, name: str, site: Site) -> bool:
    """Whether one of the lines of ``site`` is in ``statement``."""
    for code, at in site:
        _, line, _, _ = list(code.co_positions())[at // 2]
        if code.co_filename == name and statement.lineno <= (line or 0) <= (statement.end_lineno or 0):
            return True
    return False


# -- words


def _name(func: ast.AST) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _of_numpy(func: ast.AST) -> bool:
    """Whether it is one of numpy's own: those of masked arrays do not copy."""
    over = func.value if isinstance(func, ast.Attribute) else None
    if isinstance(over, ast.Attribute) and over.attr == "linalg":
        over = over.value
    return isinstance(over, ast.Name) and over.id in _NUMPY


def _slices(index: ast.expr) -> bool:
    """Whether an index makes a view for certain."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(
        isinstance(part, ast.Slice) or (isinstance(part, ast.Constant) and part.value in (None, ...)) for part in parts
    )
