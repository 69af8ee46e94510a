"""What a Triton kernel reaches for certain, read in its source."""

from __future__ import annotations

from typing import Any

import pytest

from brickprof.capture.pending.reaches import reached

tl: Any = None
BIAS: Any = None
helper: Any = None


def plain(x, out, n, B):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def by_a_variable(a, b, out, k):
    first = a + 1
    second: Any = b + 1
    for _ in range(k):
        tl.load(first)
        first += k
    tl.atomic_add(second, 1)


def by_a_block(x, out, n):
    block = tl.make_block_ptr(base=x, shape=(n,), strides=(1,), offsets=(0,), block_shape=(16,), order=(0,))
    block = tl.advance(block, (16,))
    tl.load(block)
    tl.store(out.to(tl.pointer_type(tl.float32)), 1)


def under_a_condition(x, bias, out, n):
    value = tl.load(x)
    if BIAS:
        value += tl.load(bias)
    if n:
        tl.store(out, value)
    else:
        tl.store(out + 1, value)


def one_of_two(x, y, out, which):
    pointer = x
    if which:
        pointer = y
    tl.load(pointer)
    tl.store(out, tl.load(x if which else y))


def one_after_the_other(x, y, flag):
    lower = flag and tl.load(x)
    while tl.load(flag) > lower:
        tl.load(y)


def leaving(x, y, n):
    tl.load(x)
    if n == 0:
        return
    tl.load(y)


def handed_on(x, y, out):
    helper(x, y)
    tl.store(out, [tl.load(y) for _ in range(2)])


def through_a_table(table, values):
    tl.load(values + tl.load(table))


@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        (plain, {"x", "out"}), (by_a_variable, {"a", "b"}), (by_a_block, {"x", "out"}),
        (under_a_condition, {"x", "out"}), (one_of_two, {"out"}), (one_after_the_other, {"flag"}),
        (leaving, {"x"}), (handed_on, {"out"}), (through_a_table, {"table", "values"}),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)  # fmt: skip
def test_what_is_reached_whenever_it_runs(kernel, names):
    assert reached(kernel) == names


def test_without_a_source_nothing_is_certain():
    names: dict[str, Any] = {}
    exec("def made(x):\n    tl.load(x)\n", names)
    assert reached(names["made"]) == frozenset() and reached(print) == frozenset()


def test_of_tritons_own_functions_it_is_the_function_inside():
    triton = pytest.importorskip("triton")
    assert reached(triton.jit(plain)) == {"x", "out"}
