"""Bad input: the right result, or one error that names the argument, what was expected and what was given."""

from __future__ import annotations

import re

import pytest
import torch
from problems import Problem, drawn, plain, problems, results, same_bits, upstream_for
from torch import Tensor

from brickprof.errors import BrickprofError
from brickprof.kernels import adamw, cross_entropy, gemm, linear, rmsnorm, softmax, statistics, swiglu
from brickprof.kernels.attention import attention
from brickprof.kernels.embedding import embedding
from brickprof.kernels.linear_logprob import linear_logprob
from brickprof.kernels.lm_head import lm_head
from brickprof.kernels.logprob import logprob
from brickprof.kernels.rope import rope, tables
from brickprof.kernels.transpose import transpose
from brickprof.operators import launch

CLEAR = re.compile(r"^[\w.]+: [\w.\[\]]+ should be .+; given: .+$")


def floats(problem: Problem, arguments: dict) -> list[str]:
    return [name for name, each in arguments.items() if isinstance(each, Tensor) and each.is_floating_point()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.complex64])
@pytest.mark.parametrize("problem", problems())
def test_a_wrong_type_is_named(problem, dtype):
    if problem.operator.name == "transpose":
        pytest.skip("moves any type of up to eight bytes")
    arguments = problem.arguments(torch.float32)
    for name in floats(problem, arguments):
        with pytest.raises(launch.WrongArgument) as caught:
            problem.operator.function(**arguments | {name: arguments[name].to(dtype)})
        assert CLEAR.match(str(caught.value)), caught.value
        assert str(dtype) in str(caught.value)


@pytest.mark.parametrize("problem", problems())
def test_another_device_is_named(problem):
    arguments = problem.arguments(torch.float32)
    tensors = [name for name, each in arguments.items() if isinstance(each, Tensor)]
    for name in tensors[1:]:
        with pytest.raises(launch.WrongArgument) as caught:
            problem.operator.function(**arguments | {name: arguments[name].to("meta")})
        assert CLEAR.match(str(caught.value)) and "meta" in str(caught.value), caught.value


WRONG_SHAPES = {
    "gemm of other widths": lambda: gemm.gemm(x=drawn(2, 3), w=drawn(5, 4)),
    "gemm with a vector": lambda: gemm.gemm(x=drawn(2, 3), w=drawn(3)),
    "gemm of a number": lambda: gemm.gemm(x=torch.tensor(1.0), w=drawn(3, 3)),
    "head of other widths": lambda: lm_head(x=drawn(2, 3), w=drawn(5, 4)),
    "head with a vector": lambda: lm_head(x=drawn(2, 3), w=drawn(3)),
    "dgrad": lambda: gemm.dgrad(dy=drawn(2, 3), w=drawn(4, 5)),
    "wgrad": lambda: gemm.wgrad(dy=drawn(2, 3), x=drawn(3, 5)),
    "rmsnorm weight": lambda: rmsnorm.rmsnorm(x=drawn(2, 3), weight=drawn(4)),
    "rmsnorm too wide": lambda: rmsnorm.rmsnorm(x=torch.zeros(1, 65_537), weight=torch.zeros(65_537)),
    "residual": lambda: rmsnorm.add_rmsnorm(x=drawn(2, 3), residual=drawn(1, 3), weight=drawn(3)),
    "softmax of a number": lambda: softmax.softmax(x=torch.tensor(1.0)),
    "softmax too wide": lambda: softmax.softmax(x=torch.zeros(1, 65_537)),
    "swiglu": lambda: swiglu.swiglu(gate=drawn(2, 3), up=drawn(3)),
    "heads that do not divide": lambda: attention(q=drawn(1, 3, 4, 16), k=drawn(1, 2, 4, 16), v=drawn(1, 2, 4, 16)),
    "fewer keys than queries": lambda: attention(q=drawn(1, 2, 4, 16), k=drawn(1, 2, 3, 16), v=drawn(1, 2, 3, 16)),
    "odd channels": lambda: attention(q=drawn(1, 2, 4, 24), k=drawn(1, 2, 4, 24), v=drawn(1, 2, 4, 24)),
    "other values": lambda: attention(q=drawn(1, 2, 4, 16), k=drawn(1, 2, 4, 16), v=drawn(1, 2, 5, 16)),
    "three dimensions": lambda: attention(q=drawn(2, 4, 16), k=drawn(2, 4, 16), v=drawn(2, 4, 16)),
    "rope of odd channels": lambda: rope(x=drawn(4, 7), cosine=drawn(4, 3), sine=drawn(4, 3)),
    "rope tables": lambda: rope(x=drawn(4, 8), cosine=drawn(3, 4), sine=drawn(3, 4)),
    "logits": lambda: logprob(logits=drawn(2, 3, 4), target=torch.zeros(2, dtype=torch.int64)),
    "no vocabulary": lambda: logprob(logits=drawn(2, 0), target=torch.zeros(2, dtype=torch.int64)),
    "targets": lambda: cross_entropy.cross_entropy(logits=drawn(2, 3), target=torch.zeros(3, dtype=torch.int64)),
    "reduction": lambda: cross_entropy.cross_entropy(
        logits=drawn(2, 3), target=torch.zeros(2, dtype=torch.int64), reduction="none"
    ),
    "float targets": lambda: logprob(logits=drawn(2, 3), target=torch.zeros(2)),
    "head": lambda: linear_logprob(x=drawn(2, 3), w=drawn(5, 4), target=torch.zeros(2, dtype=torch.int64)),
    "float targets of a head": lambda: linear_logprob(x=drawn(2, 3), w=drawn(5, 3), target=torch.zeros(2)),
    "table": lambda: embedding(tokens=torch.zeros(2, dtype=torch.int64), table=drawn(3)),
    "float tokens": lambda: embedding(tokens=torch.zeros(2), table=drawn(3, 4)),
    "a vector transposed": lambda: transpose(x=drawn(3)),
    "a complex matrix": lambda: transpose(x=torch.zeros(2, 2, dtype=torch.complex128)),
    "no tensors": lambda: statistics.statistics([]),
    "an empty tensor": lambda: statistics.statistics([drawn(3), torch.empty(0)]),
    "two types": lambda: statistics.statistics([drawn(3), drawn(3, dtype=torch.float16)]),
    "gaps": lambda: statistics.statistics([drawn(6)[::2]]),
    "a sample of three": lambda: statistics.Statistics().sample([drawn(6)], 3),
    "negative rate": lambda: adamw.AdamW([torch.nn.Parameter(drawn(3))], lr=-1.0),
    "beta of one": lambda: adamw.AdamW([torch.nn.Parameter(drawn(3))], betas=(0.9, 1.0)),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_what_does_not_fit_is_named(name):
    with pytest.raises(launch.WrongArgument) as caught:
        WRONG_SHAPES[name]()
    assert CLEAR.match(str(caught.value)), caught.value
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, BrickprofError)


def test_no_tensor_at_all_is_named():
    with pytest.raises(launch.WrongArgument, match=r"x should be a tensor; given: list"):
        softmax.softmax(x=[1.0, 2.0])


def strided(x: Tensor) -> Tensor:
    """The same values with gaps between them."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), 7, dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def transposed(x: Tensor) -> Tensor:
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def misaligned(x: Tensor) -> Tensor:
    room = torch.empty(x.numel() + 1, dtype=x.dtype)
    return room[1:].view(x.shape).copy_(x)


def reversed_rows(x: Tensor) -> Tensor:
    """Every other row of a larger tensor."""
    return torch.stack([x, torch.full_like(x, 7)], dim=1)[:, 0]


@pytest.mark.parametrize("change", [strided, transposed, misaligned, reversed_rows])
@pytest.mark.parametrize("problem", problems())
def test_strides_and_alignment_change_no_bit(problem, change):
    def moved(**given):
        given = {name: change(each) if isinstance(each, Tensor) else each for name, each in given.items()}
        return problem.operator.function(**given)

    found = results(problem.operator, moved, problem.arguments(torch.float32), upstream_for(problem, torch.float32))
    expected = plain(problem)
    assert [name for name in expected if not same_bits(found[name], expected[name])] == []


@pytest.mark.parametrize("problem", problems(with_rows=True))
def test_no_rows_give_no_rows(problem):
    arguments = problem.arguments(torch.float32)
    rows = problem.operator.rows
    none = {name: each.narrow(rows[name], 0, 0) if name in rows else each for name, each in arguments.items()}
    upstream = upstream_for(problem, torch.float32)[:0]
    found = results(problem.operator, problem.operator.function, none, upstream)
    assert found["out"].shape == upstream.shape
    for name in problem.operator.differentiable:
        assert found[name].shape == none[name].shape
        assert (found[name] == 0).all()


EMPTY = {
    "gemm without columns": lambda: gemm.gemm(x=drawn(2, 3), w=drawn(0, 3)),
    "swiglu": lambda: swiglu.swiglu(gate=torch.empty(0), up=torch.empty(0)),
    "softmax": lambda: softmax.softmax(x=torch.empty(3, 0)),
    "rmsnorm": lambda: rmsnorm.rmsnorm(x=torch.empty(3, 0), weight=torch.empty(0)),
    "transpose": lambda: transpose(x=torch.empty(2, 0, 3)),
    "rope": lambda: rope(x=torch.empty(2, 0, 4), cosine=torch.empty(0, 2), sine=torch.empty(0, 2)),
    "attention without queries": lambda: attention(q=drawn(1, 2, 0, 16), k=drawn(1, 2, 3, 16), v=drawn(1, 2, 3, 16)),
    "embedding": lambda: embedding(tokens=torch.empty(0, 4, dtype=torch.int64), table=drawn(3, 5)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_in_empty_out(name):
    assert EMPTY[name]().numel() == 0


def test_a_sum_over_nothing_is_zero():
    assert (gemm.gemm(x=torch.empty(2, 0), w=torch.empty(3, 0)) == 0).all()
    x, w = torch.empty(2, 0, requires_grad=True), torch.empty(3, 0, requires_grad=True)
    gemm.gemm(x=x, w=w).backward(drawn(2, 3))
    assert x.grad.shape == (2, 0) and w.grad.shape == (3, 0)


def test_a_loss_over_no_rows_is_torch_s():
    none = torch.empty(0, dtype=torch.int64)
    assert cross_entropy.cross_entropy(logits=torch.empty(0, 5), target=none).isnan()
    logits = torch.empty(0, 5, requires_grad=True)
    loss = cross_entropy.cross_entropy(logits=logits, target=none, reduction="sum")
    loss.backward()
    assert loss == 0 and logits.grad.shape == (0, 5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("problem", problems(with_rows=True))
def test_nan_and_inf_stay_in_their_row(problem, value):
    arguments = problem.arguments(torch.float32)
    name = next((each for each in problem.operator.rows if each in problem.operator.differentiable), None)
    if name is None:
        pytest.skip("no numbers in its rows")
    if "target" in arguments:
        arguments["target"][1] = 2  # not an ignored row
    clean = problem.operator.function(**arguments)
    spoilt = arguments[name].clone()
    spoilt[1].view(-1)[0] = value
    found = problem.operator.function(**arguments | {name: spoilt})
    assert same_bits(found[0], clean[0]) and same_bits(found[2:], clean[2:])
    if problem.operator.name not in ("gelu", "silu", "softmax", "logprob", "linear_logprob", "attention"):
        assert not torch.isfinite(found[1]).all()
    elif value != value:
        assert found[1].isnan().any()


def test_more_dimensions_than_two():
    x, w = drawn(2, 3, 4, 8), drawn(5, 8, seed=1)
    assert same_bits(gemm.gemm(x=x, w=w), gemm.gemm(x=x.view(-1, 8), w=w).view(2, 3, 4, 5))
    assert gemm.gemm(x=drawn(8), w=w).shape == (5,)
    assert rmsnorm.rmsnorm(x=x, weight=torch.ones(8)).shape == x.shape
    assert softmax.softmax(x=x).shape == x.shape


def test_int32_tokens_and_targets_are_those_of_int64():
    tokens, logits = torch.tensor([1, 0, 2]), drawn(3, 9)
    assert same_bits(embedding(tokens=tokens.int(), table=logits), embedding(tokens=tokens, table=logits))
    given = {"logits": logits, "target": tokens}
    narrow = {"logits": logits, "target": tokens.int()}
    assert same_bits(logprob(**narrow), logprob(**given))
    x, w = drawn(3, 4), drawn(9, 4)
    assert same_bits(linear_logprob(x=x, w=w, target=tokens.int()), linear_logprob(x=x, w=w, target=tokens))


# -- launches


def test_a_buffer_that_is_too_small_is_refused_before_the_launch():
    before = launch.counts()["swiglu.forward"].launches
    with pytest.raises(launch.BufferTooSmall, match=r"y holds 3 elements.*reaches 4.*C-BUFSIZE-001"):
        swiglu._forward.launch((1,), needs={"y": 4}, gate=drawn(4), up=drawn(4), y=torch.empty(3), count=4, BLOCK=16)
    assert launch.counts()["swiglu.forward"].launches == before


def test_a_buffer_is_measured_from_where_its_view_begins():
    y = torch.zeros(8)
    swiglu._forward.launch((1,), needs={"y": 4}, gate=torch.ones(4), up=torch.ones(4), y=y[4:], count=4, BLOCK=16)
    assert (y[:4] == 0).all() and (y[4:] > 0).all()
    with pytest.raises(launch.BufferTooSmall):
        swiglu._forward.launch((1,), needs={"y": 4}, gate=drawn(4), up=drawn(4), y=y[5:], count=4, BLOCK=16)


@pytest.mark.parametrize("call", [gemm.gemm, gemm.dgrad, gemm.wgrad, gemm.product])
def test_operands_of_a_product_cannot_be_swapped_by_place(call):
    with pytest.raises(TypeError):
        call(drawn(4, 4), drawn(4, 4))


def test_a_launch_takes_no_argument_by_place():
    with pytest.raises(TypeError):
        swiglu._forward.launch((1,), drawn(4), drawn(4), drawn(4), 4)


def test_layers_of_a_wrong_size_are_named():
    with pytest.raises(launch.WrongArgument, match=r"gemm: x should be \(\.\.\., 8\); given: \(2, 7\)"):
        linear.Linear(8, 3)(drawn(2, 7))


def test_tables_of_rope_have_the_shape_it_wants():
    cosine, sine = tables(length=3, channels=8)
    assert cosine.shape == sine.shape == (3, 4) and cosine.dtype == torch.float32
