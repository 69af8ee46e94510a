"""Which tensor a stride belongs to, by its name.

Enters: the name of a number and the names of the tensors beside it. Leaves: the tensor, and what is left of the name,
which says along which of its dimensions:

    stride_am, a_stride_m, stride_a_m     ->  a_ptr, m        stride_om, out_stride_m   ->  out, m
    stride_x0, x_row_stride               ->  X, 0 and row    stride_asm                ->  a_scale_ptr, m

A name that could mean several tensors means none, and so does a bare letter: ``stride_h`` may be a height.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

Words = tuple[str, ...]
_POINTER = frozenset({"ptr", "ptrs", "pointer"})
_DIMENSIONS = frozenset({"row", "col", "seq", "tok", "dim", "out", "in", "bs", "bh"})


def owner(number: str, tensors: Iterable[str]) -> tuple[str, str] | None:
    """The tensor that the stride ``number`` is one of, and its dimension's name."""
    if "stride" not in number.lower():
        return None
    said = _words(re.sub("strides?", "_", number.lower()))
    named = [(tensor, _words(tensor.lower())) for tensor in tensors]
    for found in (_in_full(said, named), _with_a_letter(said, named), _by_initials(said, named)):
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def _in_full(said: Words, named: list[tuple[str, Words]]) -> set[tuple[str, str]]:
    """``a_m`` and ``m_a``; the longest of the names that fit."""
    found: dict[int, set[tuple[str, str]]] = {}
    for tensor, words in named:
        length = len(words)
        if words and length < len(said):
            if said[:length] == words:
                found.setdefault(length, set()).add((tensor, "_".join(said[length:])))
            if said[-length:] == words:
                found.setdefault(length, set()).add((tensor, "_".join(said[:-length])))
    return found[max(found)] if found else set()


def _with_a_letter(said: Words, named: list[tuple[str, Words]]) -> set[tuple[str, str]]:
    """``am``."""
    if len(said) != 1 or said[0] in _DIMENSIONS:
        return set()
    return {(tensor, said[0][-1]) for tensor, words in named if words == (said[0][:-1],)}


def _by_initials(said: Words, named: list[tuple[str, Words]]) -> set[tuple[str, str]]:
    """``om`` of ``out``."""
    if len(said) not in (1, 2) or said[0] in _DIMENSIONS:
        return set()
    initials, label = (said[0][:-1], said[0][-1]) if len(said) == 1 else said
    return {(tensor, label) for tensor, words in named if initials and initials == "".join(each[0] for each in words)}


def _words(name: str) -> Words:
    """The words of a name, less the one for pointer."""
    words = (each for each in re.findall(r"[a-z]+|\d+", name) if each not in _POINTER)
    return tuple(each.removesuffix("ptr") for each in words)
