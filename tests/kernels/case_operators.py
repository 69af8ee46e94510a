"""Every operation of kernels/: right in both directions, and a row's bits are its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from problems import Problem, drawn, plain, problems, results, same_bits, upstream_for
from torch import Tensor

from brickprof.operators import launch
from brickprof.operators.operator import all_operators
from brickprof.operators.tolerances import tolerance

TYPES = {"fp32": torch.float32, "fp16": torch.float16}


def gold(problem: Problem, arguments: dict[str, Any], upstream: Tensor) -> dict[str, Tensor]:
    wide = {
        name: value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }
    return results(problem.operator, problem.operator.reference, wide, upstream.float())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("problem", problems())
def test_forward_and_gradients_lie_within_tolerance_of_the_gold(problem, dtype):
    arguments, upstream = problem.arguments(TYPES[dtype]), upstream_for(problem, TYPES[dtype])
    ours = results(problem.operator, problem.operator.function, arguments, upstream)
    narrow = dict.fromkeys(problem.operator.differentiable, TYPES[dtype])
    narrow["out"] = torch.float32 if problem.operator.family == "logprob" else TYPES[dtype]
    assert {name: each.dtype for name, each in ours.items()} == narrow
    for name, expected in gold(problem, arguments, upstream).items():
        allowed = tolerance(problem.operator.family, dtype, gradient=name != "out")
        torch.testing.assert_close(
            ours[name].float(), expected, atol=allowed.atol, rtol=allowed.rtol,
            msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip


def picked(problem: Problem, arguments: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    return {
        name: value.index_select(problem.operator.rows[name], rows) if name in problem.operator.rows else value
        for name, value in arguments.items()
    }


def count(problem: Problem, arguments: dict[str, Any]) -> int:
    name, dim = next(iter(problem.operator.rows.items()))
    return arguments[name].shape[dim]


def of_rows(problem: Problem, found: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """The outputs and gradients that belong to rows, at ``rows``."""
    dims = {"out": 0, **problem.operator.rows}
    return {name: each.index_select(dims[name], rows) for name, each in found.items() if name in dims}


def run(problem: Problem, arguments: dict[str, Any], upstream: Tensor) -> dict[str, Tensor]:
    return results(problem.operator, problem.operator.function, arguments, upstream)


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not same_bits(one[name], other[name])]


@pytest.mark.parametrize("problem", problems(with_rows=True))
def test_a_row_alone_has_the_bits_it_has_in_a_batch(problem):
    arguments, upstream = problem.arguments(torch.float32), upstream_for(problem, torch.float32)
    whole = plain(problem)
    for number in range(min(5, count(problem, arguments))):
        row = torch.tensor([number])
        alone = run(problem, picked(problem, arguments, row), upstream[row])
        assert differing(of_rows(problem, alone, torch.tensor([0])), of_rows(problem, whole, row)) == [], number


@pytest.mark.parametrize("problem", problems(with_rows=True))
def test_rows_keep_their_bits_at_another_place(problem):
    arguments, upstream = problem.arguments(torch.float32), upstream_for(problem, torch.float32)
    order = torch.arange(count(problem, arguments)).flip(0)
    there = run(problem, picked(problem, arguments, order), upstream[order])
    assert differing(of_rows(problem, there, order), of_rows(problem, plain(problem), torch.arange(len(order)))) == []


@pytest.mark.parametrize("problem", problems(with_rows=True))
def test_padding_changes_no_bit_of_a_row_nor_of_a_weight(problem):
    arguments, upstream = problem.arguments(torch.float32), upstream_for(problem, torch.float32)
    rows, more = count(problem, arguments), 3
    longer = picked(problem, arguments, torch.arange(rows + more).clamp(max=rows - 1))
    for name, dim in problem.operator.rows.items():
        if longer[name].is_floating_point():
            longer[name].narrow(dim, rows, more).fill_(1e4)
    quiet = torch.cat([upstream, torch.zeros_like(upstream[:1]).expand(more, *upstream.shape[1:])])
    padded, alone = run(problem, longer, quiet), plain(problem)
    kept = torch.arange(rows)
    assert differing(of_rows(problem, padded, kept), of_rows(problem, alone, kept)) == []
    weights = [name for name in problem.operator.differentiable if name not in problem.operator.rows]
    assert [name for name in weights if not same_bits(padded[name], alone[name])] == []


def schedules() -> list[Any]:
    return [
        pytest.param(Problem(each, each.sizes[0]), schedule, id=f"{name}-{schedule.name}")
        for name, each in all_operators().items()
        for schedule in each.schedules
    ]


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("problem", "schedule"), schedules())
def test_another_schedule_gives_the_same_bits(problem, schedule, dtype):
    one, other = schedule.compare(problem.operator.function, problem.arguments(dtype))
    assert one.numel() > 0
    assert same_bits(one, other)


def test_attention_has_schedules():
    assert {each.transform for each in all_operators()["attention"].schedules} >= {"T5", "T7"}


@pytest.mark.parametrize("problem", problems())
def test_an_upstream_gradient_of_other_strides_gives_the_same_bits_again(problem):
    """What autograd hands over need not be contiguous."""
    arguments, upstream = problem.arguments(torch.float32), upstream_for(problem, torch.float32)
    strided = upstream.transpose(0, -1).contiguous().transpose(0, -1) if upstream.ndim else upstream
    assert differing(run(problem, arguments, strided), plain(problem)) == []


@pytest.mark.parametrize("problem", problems())
def test_an_upstream_gradient_that_is_one_number_everywhere(problem):
    """As the backward of a sum gives it: of stride 0."""
    if problem.operator.name == "attention":
        pytest.skip("covered by the strides above, and slow")
    arguments, one = problem.arguments(torch.float32), torch.full((), 0.5).expand(plain(problem)["out"].shape)
    assert differing(run(problem, arguments, one), run(problem, arguments, one.contiguous())) == []


@pytest.mark.parametrize("name", all_operators())
def test_every_operation_launches_and_takes_names_only(name):
    operator = all_operators()[name]
    arguments = Problem(operator, operator.sizes[0]).arguments(torch.float32)
    before = sum(each.launches for each in launch.counts().values())
    operator.function(**arguments)
    assert sum(each.launches for each in launch.counts().values()) > before
    with pytest.raises(TypeError):
        operator.function(*arguments.values())


def test_a_listener_hears_names_shapes_bytes_and_flops():
    heard = []

    class Ear:
        def begin(self, told):
            heard.append(told)

        def fell_back(self, operation, reason):
            raise AssertionError

    from brickprof.kernels.gemm import gemm

    before = launch.listen(Ear())
    try:
        gemm(x=drawn(3, 8), w=drawn(5, 8))
    finally:
        launch.listen(before)
    assert [each.kernel for each in heard] == ["gemm.pointers"]
    assert heard[0].shapes["c"] == (3, 5) and heard[0].dtypes["a"] == "float32"
    assert heard[0].flops == 2 * 3 * 5 * 8 and heard[0].bytes == 4 * (3 * 8 + 8 * 5 + 3 * 5)


def test_a_listener_that_breaks_breaks_nothing():
    class Broken:
        def begin(self, told):
            raise RuntimeError

        def fell_back(self, operation, reason):
            raise RuntimeError

    from brickprof.kernels.softmax import softmax

    before = launch.listen(Broken())
    try:
        assert torch.isfinite(softmax(x=drawn(2, 4))).all()
    finally:
        launch.listen(before)
