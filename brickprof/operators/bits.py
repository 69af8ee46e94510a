"""Two tensors held against each other: to the byte, or within a tolerance.

Enters: what was expected and what was given, rows along dimension 0. Leaves: a ``Difference``: how many elements part,
the first of them (the lowest row, then the lowest element in it, not the largest error), and the errors.

Equal means equal bytes: +0 is not -0, and a NaN is equal only to the same NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from brickprof.operators.tolerances import Tolerance

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One element that parts, as numbers and as bytes."""

    row: int
    element: int
    expected: float
    given: float
    expected_bits: str
    given_bits: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "row": self.row, "element": self.element,
            "expected": portable(self.expected), "given": portable(self.given),
            "expected_bits": self.expected_bits, "given_bits": self.given_bits,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Mismatch:
        return cls(
            int(fields["row"]), int(fields["element"]), float(fields["expected"]), float(fields["given"]),
            str(fields["expected_bits"]), str(fields["given_bits"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    elements: int
    mismatches: int
    first: Mismatch | None
    max_error: float
    mean_error: float
    share: float = 0.0
    """The largest error as a share of what is allowed there; 1 is the limit."""
    note: str = ""

    def at_rows(self, rows: Tensor | None) -> Difference:
        """The same, where the rows compared are these of a whole."""
        if rows is None or self.first is None:
            return self
        return replace(self, first=replace(self.first, row=int(rows[self.first.row])))


def portable(number: float) -> float | str:
    """Strict JSON has no NaN and no infinity: they are words, which ``float`` reads back."""
    return number if number - number == 0 else str(number)


def compare(expected: Tensor, given: Tensor) -> Difference:
    """Bytes against bytes."""
    unlike = _unlike(expected, given)
    if unlike is None and expected.dtype != given.dtype:
        unlike = _nothing_alike(given, f"{given.dtype} where {expected.dtype} was expected")
    if unlike is not None:
        return unlike
    parted = _integers(expected) != _integers(given)
    return _measured(expected, given, parted, settled=~parted)


def within(gold: Tensor, given: Tensor, allowed: Tolerance) -> Difference:
    """``given`` against a gold. NaN or infinity where the gold is finite parts, whatever is allowed."""
    unlike = _unlike(gold, given)
    if unlike is not None:
        return unlike
    wide, truth = given.double(), gold.double()
    room = allowed.atol + allowed.rtol * truth.abs()
    error = (wide - truth).abs()
    agreed = ~truth.isfinite() & ((wide == truth) | (wide.isnan() & truth.isnan()))
    parted = ~agreed & ~(error <= room)
    difference = _measured(gold, given, parted, settled=agreed)
    used = torch.where(agreed, torch.zeros_like(error), error / room).nan_to_num(nan=float("inf"))
    wild = int((~wide.isfinite() & truth.isfinite()).sum())
    note = f"{wild:,} values are NaN or infinite where the gold is finite" if wild else ""
    return replace(difference, share=float(used.max()) if used.numel() else 0.0, note=note)


def _unlike(expected: Tensor, given: Tensor) -> Difference | None:
    if expected.shape == given.shape:
        return None
    return _nothing_alike(given, f"the shape is {tuple(given.shape)} where {tuple(expected.shape)} was expected")


def _nothing_alike(given: Tensor, note: str) -> Difference:
    return Difference(given.numel(), given.numel(), None, float("inf"), float("inf"), float("inf"), note)


def _integers(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()])


def _measured(expected: Tensor, given: Tensor, parted: Tensor, settled: Tensor) -> Difference:
    if not parted.numel():
        return Difference(0, 0, None, 0.0, 0.0)
    error = (given.double() - expected.double()).abs()
    error = torch.where(settled, torch.zeros_like(error), error).nan_to_num(nan=float("inf"), posinf=float("inf"))
    mismatches = int(parted.sum())
    first = _first(expected, given, parted) if mismatches else None
    return Difference(parted.numel(), mismatches, first, float(error.max()), float(error.mean()))


def _first(expected: Tensor, given: Tensor, parted: Tensor) -> Mismatch:
    at = int(parted.reshape(-1).to(torch.uint8).argmax())
    in_a_row = parted.numel() // parted.shape[0] if parted.ndim else 1
    (was, was_bits), (now, now_bits) = _value(expected, at), _value(given, at)
    return Mismatch(at // in_a_row, at % in_a_row, was, now, was_bits, now_bits)


def _value(tensor: Tensor, at: int) -> tuple[float, str]:
    element = tensor.detach().reshape(-1)[at : at + 1]
    size = element.element_size()
    bits = int(_integers(element)) & (1 << 8 * size) - 1
    return float(element), f"0x{bits:0{2 * size}x}"
