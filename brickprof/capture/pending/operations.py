"""What an operation of torch reads and what it writes, from its schema.

Enters: an operation and its arguments. Leaves: its tensors, each with whether it is written; views touch nothing, and
what only asks for a shape (``empty_like``) reads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

_SHAPE_ONLY = re.compile(
    r"aten::(new_.*|.*_like|empty|empty_strided|empty_permuted|_efficientzerotensor|size|stride|storage_offset|numel|"
    r"sym_.*|is_.*|_has_.*|dim|resize_|set_|detach_|_version|_debug_has_internal_overlap)$"
)
_ALLOCATES_ONLY = re.compile(r"aten::(new_empty.*|empty_like|empty|empty_strided|empty_permuted)$")
_WAITS = frozenset({
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique",
    "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim", "aten::unique_dim_consecutive", "aten::bincount",
    "aten::_linalg_check_errors", "aten::_linalg_eigh", "aten::_linalg_svd", "aten::linalg_eig", "aten::cholesky",
})  # fmt: skip
"""Those in which the host always waits: for a size, for a number, or to see whether something failed. Torch's trace
tells of most of these waits as well; of those inside Thrust it does not."""
_CHECKED = frozenset({
    "aten::linalg_inv_ex", "aten::linalg_cholesky_ex", "aten::_linalg_solve_ex", "aten::linalg_lu_factor_ex",
    "aten::linalg_ldl_factor_ex",
})  # fmt: skip
_PICKS = frozenset({"aten::index", "aten::_unsafe_index"})
_PUTS = frozenset({"aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"})
_FILLS = frozenset({"aten::masked_fill", "aten::masked_fill_", "aten::index_fill", "aten::index_fill_"})
_SOMETIMES = _CHECKED | _PICKS | _PUTS | _FILLS | {"aten::repeat_interleave", "aten::histc"}
_MASKS = (torch.bool, torch.uint8)
OnDevice = Callable[[torch.Tensor], bool]
_COPIES = frozenset({"aten::copy_", "aten::_to_copy", "aten::_foreach_copy_"})
_ELSEWHERE = ("c10d::", "_c10d_functional::", "c10d_functional::", "symm_mem::", "profiler::", "prim::")
"""Operations with streams, or an order, of their own."""


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    reads: tuple[tuple[int, str], ...]
    writes: tuple[tuple[int, str], ...]
    allocates_only: bool
    copies: bool
    arguments: tuple[str, ...]
    """Their names, in order."""
    skipped: bool
    records: bool
    """``record_stream``."""


_plans: dict[Any, Plan] = {}


def plan(func: Any) -> Plan:
    known = _plans.get(func)
    if known is None:
        known = _plans[func] = _planned(func)
    return known


def _planned(func: Any) -> Plan:
    schema = func._schema
    name = str(schema.name)
    places = [(at, argument.name, argument.alias_info) for at, argument in enumerate(schema.arguments)]
    shape_only = bool(_SHAPE_ONLY.match(name))
    return Plan(
        name=name,
        reads=tuple((at, word) for at, word, alias in places if alias is None and not shape_only),
        writes=tuple((at, word) for at, word, alias in places if alias and alias.is_write and not shape_only),
        allocates_only=bool(_ALLOCATES_ONLY.match(name)),
        copies=name in _COPIES,
        arguments=tuple(argument.name for argument in schema.arguments),
        skipped=name.startswith(_ELSEWHERE),
        records=name == "aten::record_stream",
    )  # fmt: skip


def uses(made: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[torch.Tensor, bool]]:
    """The tensors that are touched, and whether they are written."""
    for places, write in ((made.reads, False), (made.writes, True)):
        for at, word in places:
            value = args[at] if at < len(args) else kwargs.get(word)
            for tensor in tensors(value):
                yield tensor, write


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument or a result that have a storage of their own."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)


def waits(made: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], on_device: OnDevice) -> bool:
    """Whether the host waits inside, for the stream that the operation is on."""
    if made.name not in _SOMETIMES:
        return made.name in _WAITS
    given = {**dict(zip(made.arguments, args, strict=False)), **kwargs}
    if made.name in _PICKS:
        return _waits_to_pick(given["indices"], on_device)
    if made.name in _PUTS:
        return _waits_to_put(given, on_device)
    if made.name in _FILLS:
        value = given.get("value")
        return isinstance(value, torch.Tensor) and on_device(value)
    if made.name in _CHECKED:
        return bool(given.get("check_errors", False))
    if made.name == "aten::repeat_interleave":
        return given.get("output_size") is None
    return bool(given.get("min", 0) == given.get("max", 0))


def _waits_to_pick(indices: Any, on_device: OnDevice) -> bool:
    """A mask is counted first; an index of the host's is sent, and that is waited for."""
    told = [each for each in indices if isinstance(each, torch.Tensor)]
    return any(each.dtype in _MASKS if on_device(each) else each.numel() > 0 for each in told)


def _waits_to_put(given: dict[str, Any], on_device: OnDevice) -> bool:
    """A single number of the host's is filled in under a single mask, without counting it; else it is sent."""
    value, told = given["values"], [each for each in given["indices"] if isinstance(each, torch.Tensor)]
    if on_device(value):
        return _waits_to_pick(told, on_device)
    one = len(told) == 1 and told[0].dtype in _MASKS and on_device(told[0])
    return not (one and value.numel() == 1 and not given.get("accumulate", False))


def copied(made: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[tuple[Any, Any]]:
    """Of a copy: each target with its source."""
    if made.name == "aten::_to_copy":
        return [(result, args[0] if args else kwargs.get("self"))]
    target, source = args[0], args[1] if len(args) > 1 else kwargs.get("src")
    if isinstance(target, (list, tuple)) and isinstance(source, (list, tuple)):
        return list(zip(target, source, strict=False))
    return [(target, source)]


def non_blocking(made: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    place = 2 if made.name != "aten::_to_copy" else len(args)
    return bool(args[place] if place < len(args) else kwargs.get("non_blocking", False))


def direct(host: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a copy that does not wait goes straight from or to ``host``: what lies scattered goes by way of a
    buffer of torch's own, which is not pinned, and is over with before torch returns."""
    if host.is_contiguous() and host.shape == other.shape:
        return True
    same = host.dtype == other.dtype and host.shape == other.shape and host.stride() == other.stride()
    return same and _dense(host)


def _dense(tensor: torch.Tensor) -> bool:
    reach = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != reach:
            return False
        reach *= size
    return True
