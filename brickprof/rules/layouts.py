"""How elements lie in memory: pairs of a size and a stride, in whatever order.

Enters: such pairs. Leaves: whether two of them are one layout, how far one reaches, whether two of its indices meet in
one element.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

Dims = tuple[tuple[int, int], ...]


def normal(dims: Iterable[tuple[int, int]]) -> Dims:
    """The same elements in as few dimensions as there can be: alike for transposed and for reshaped views."""
    found: list[tuple[int, int]] = []
    for size, stride in sorted((each for each in dims if each[0] != 1), key=lambda each: (each[1], each[0])):
        if found and stride == found[-1][0] * found[-1][1]:
            found[-1] = (found[-1][0] * size, found[-1][1])
        else:
            found.append((size, stride))
    return tuple(found)


def reach(dims: Iterable[tuple[int, int]]) -> int:
    """Elements from the first to behind the last."""
    return 1 + sum((size - 1) * stride for size, stride in dims)


def meets(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two places of a matrix are one element."""
    (rows, row), (columns, column) = one, other
    common = math.gcd(row, column)
    if not common:
        return rows > 1 or columns > 1
    return rows > column // common and columns > row // common


def is_matrix(shape: tuple[int, ...], rows: int, columns: int) -> bool:
    """Whether ``shape`` is that of a matrix, either way round, but for neighbouring dimensions that are one to it."""
    for cut in range(len(shape) + 1):
        sides = math.prod(shape[:cut]), math.prod(shape[cut:])
        if sides in ((rows, columns), (columns, rows)):
            return True
    return False
