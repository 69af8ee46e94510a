"""Kernels that take a whole model at once: the statistics of its gradients, and AdamW."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import WORDS, drawn, same_bits

from brickprof.kernels import statistics as module
from brickprof.kernels.adamw import AdamW
from brickprof.kernels.statistics import (
    NAMES,
    Statistics,
    as_dicts,
    chunk_of,
    reference,
    sample_reference,
    statistics,
)

few = settings(max_examples=8, deadline=None)
TYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    """A sixteenth of the real ones: the interpreter is slow."""
    monkeypatch.setattr(module, "ROUNDS", 4)


COUNTED = ["nan", "inf", "absmax", "checksum", "numel"]


def assert_like_the_reference(tensors):
    for number, (ours, theirs) in enumerate(
        zip(as_dicts(statistics(tensors)), as_dicts(reference(tensors)), strict=True)
    ):
        assert {name: ours[name] for name in COUNTED} == {name: theirs[name] for name in COUNTED}, number
        assert ours["zeros"] == theirs["zeros"], number
        assert ours["l2"] == pytest.approx(theirs["l2"], rel=1e-5), number
        scale = theirs["l2"] / theirs["numel"] ** 0.5  # a mean near zero is a difference of large sums
        assert ours["mean"] == pytest.approx(theirs["mean"], rel=1e-5, abs=1e-5 * scale), number


@pytest.mark.parametrize("dtype", TYPES)
def test_all_eight_columns_over_many_sizes(dtype):
    sizes = [1, 2, 3, 31, 1023, 1024, 1025, 4097]
    assert_like_the_reference([drawn(size, seed=size, dtype=dtype) for size in sizes])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_tensor_of_several_chunks(dtype):
    x = drawn(2 * chunk_of(dtype) + 77, dtype=dtype)
    x[5], x[chunk_of(dtype) + 1], x[-1] = float("nan"), float("inf"), 0.0
    assert_like_the_reference([x, x[:10]])


SPECIAL = {
    "zeros": [0.0] * 9,
    "one nan": [1.0, float("nan"), 2.0],
    "only nan": [float("nan")] * 3,
    "only inf": [float("inf"), -float("inf")],
    "all kinds": [0.0, -0.0, float("nan"), float("inf"), -float("inf"), -3.0, 4.0],
    "denormal": [1e-40, -1e-40, 0.0],
    "tiny": [1e-30, 2e-30],
    "huge": [1e35, -2e35, 1e35],
    "huge and inf": [1e35, float("inf"), 3.0],
    "tiny beside one": [1e-30, 1.0],
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_special_values(name, dtype):
    assert_like_the_reference([torch.tensor(SPECIAL[name], dtype=dtype)])


def test_special_values_of_fp16():
    inf = float("inf")
    values = [[6e-8, 6e-8], [65504.0, -65504.0, inf], [0.0, -0.0, float("nan"), 1e-5]]
    assert_like_the_reference([torch.tensor(each, dtype=torch.float16) for each in values])


def test_a_norm_of_what_does_not_fit_in_fp32_when_squared():
    (found,) = as_dicts(statistics([torch.full((5000,), 1e35)]))
    assert found["l2"] == pytest.approx(1e35 * 5000**0.5, rel=1e-5)
    (found,) = as_dicts(statistics([torch.full((5000,), 1e-30)]))
    assert found["l2"] == pytest.approx(1e-30 * 5000**0.5, rel=1e-5)


def test_huge_and_tiny_chunks_of_one_tensor_add_up():
    x = torch.full((2 * chunk_of(torch.float32),), 1e-30)
    x[chunk_of(torch.float32) :] = 1e20
    assert_like_the_reference([x])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_views_that_are_not_aligned(dtype, offset):
    base = drawn(3000, dtype=dtype)
    assert_like_the_reference([base[offset : offset + 2049], base[offset:]])


def test_dense_views_in_another_order_have_the_same_numbers():
    x = drawn(40, 33)
    one, other = as_dicts(statistics([x])), as_dicts(statistics([x.T]))
    for name in ("nan", "inf", "absmax", "l2", "zeros", "numel"):
        assert one[0][name] == other[0][name]


def checksum(x):
    return as_dicts(statistics([x]))[0]["checksum"]


@few
@given(st.sampled_from(TYPES), st.integers(0, 2**31), st.integers(0, 4000), st.integers(0, 31))
def test_one_flipped_bit_changes_the_checksum(dtype, seed, place, bit):
    x = drawn(2500, seed=seed, dtype=dtype)
    flipped = x.clone()
    word = WORDS[x.element_size()]
    bit %= 8 * x.element_size()
    most = 8 * x.element_size() - 1
    flipped.view(word)[place % 2500] ^= torch.tensor(-(2**most) if bit == most else 2**bit, dtype=word)
    assert checksum(x) != checksum(flipped)


@few
@given(st.sampled_from(TYPES), st.integers(0, 2**31), st.integers(0, 2499), st.integers(1, 2499))
def test_two_swapped_elements_change_the_checksum(dtype, seed, place, by):
    x = drawn(2500, seed=seed, dtype=dtype)
    other = (place + by) % 2500
    swapped = x.clone()
    swapped[place], swapped[other] = x[other], x[place]
    assert (checksum(x) != checksum(swapped)) or same_bits(x, swapped)


def test_swapped_chunks_change_the_checksum():
    chunk = chunk_of(torch.float32)
    x = drawn(2 * chunk)
    assert checksum(x) != checksum(torch.cat([x[chunk:], x[:chunk]]))


def test_signs_of_zero_and_payloads_of_nan_change_the_checksum():
    zeros = torch.zeros(8)
    zeros[3] = -0.0
    assert checksum(torch.zeros(8)) != checksum(zeros)
    bits = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32)
    assert checksum(bits[:1].view(torch.float32)) != checksum(bits[1:].view(torch.float32))


@pytest.mark.parametrize("dtype", TYPES)
def test_two_flipped_signs_change_the_checksum(dtype):
    x = drawn(64, dtype=dtype)
    other = x.clone()
    other[[3, 40]] *= -1
    if dtype != torch.float32:
        other[[3, 40]] *= -1
        other[[3, 41]] *= -1  # the two that stand in the upper half of a word
    assert checksum(x) != checksum(other)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_sample_is_spread_evenly(dtype):
    tensors = [drawn(size, seed=size, dtype=dtype) for size in (1, 5, 64, 65, 1000)]
    ours, theirs = Statistics().sample(tensors, 64), sample_reference(tensors, 64)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


def test_the_same_tensors_again_with_other_values():
    """The table of addresses stays; what stands there is read anew."""
    keeper, x = Statistics(), drawn(100)
    first = keeper([x]).clone()
    x.mul_(2)
    second = keeper([x])
    assert second[0, NAMES.index("l2")] == pytest.approx(2 * first[0, NAMES.index("l2")].item())
    other = drawn(7)
    assert keeper([other])[0, NAMES.index("numel")] == 7


# -- adamw


def model(seed=0, dtype=torch.float32):
    return [torch.nn.Parameter(drawn(*shape, seed=seed + i, dtype=dtype)) for i, shape in enumerate([(40, 33), (7,)])]


def train(optimizer, parameters, steps, start=0):
    for step in range(start, start + steps):
        for number, parameter in enumerate(parameters):
            parameter.grad = drawn(*parameter.shape, seed=100 * step + number, dtype=parameter.dtype)
        optimizer.step()


SETTINGS = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


def test_adamw_is_torch_s_over_many_steps():
    ours, theirs = model(), model()
    mine, other = AdamW(ours, **SETTINGS), torch.optim.AdamW(theirs, **SETTINGS)
    train(mine, ours, 7)
    train(other, theirs, 7)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(mine.state[one]["exp_avg"], other.state[two]["exp_avg"], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(mine.state[one]["exp_avg_sq"], other.state[two]["exp_avg_sq"], atol=1e-6, rtol=1e-5)
        assert (mine.state[one]["exp_avg_sq"] >= 0).all()


def test_one_step_of_adamw_within_eight_units():
    ours, wide = model(), [torch.nn.Parameter(each.detach().double()) for each in model()]
    mine, other = AdamW(ours, **SETTINGS), torch.optim.AdamW(wide, **SETTINGS)
    for number, (one, two) in enumerate(zip(ours, wide, strict=True)):
        one.grad = drawn(*one.shape, seed=number)
        two.grad = one.grad.double()
    before = [each.detach().clone() for each in wide]
    mine.step()
    other.step()
    for one, two, was in zip(ours, wide, before, strict=True):
        # Of what is subtracted: a weight that an update all but cancels has few places of its own left.
        place = torch.finfo(torch.float32).eps * torch.maximum(two.detach().abs(), was.abs())
        assert float(((one.detach().double() - two.detach()).abs() / place).max()) <= 8


def test_the_decay_is_decoupled():
    parameters = model()
    before = [each.detach().clone() for each in parameters]
    optimizer = AdamW(parameters, **SETTINGS)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter, start in zip(parameters, before, strict=True):
        torch.testing.assert_close(parameter.detach(), start * (1 - 1e-2 * 0.1), atol=0, rtol=1e-6)
    coupled, ours = model(), model()
    train(torch.optim.Adam(coupled, **SETTINGS), coupled, 3)
    train(AdamW(ours, **SETTINGS), ours, 3)
    assert (coupled[0] - ours[0]).abs().max() > 1e-3


@pytest.mark.parametrize("first", ["ours", "torch"])
def test_checkpoints_move_between_the_two(first):
    makes = {"ours": AdamW, "torch": torch.optim.AdamW}
    second = "torch" if first == "ours" else "ours"
    whole, parts = model(), model()
    train(torch.optim.AdamW(whole, **SETTINGS), whole, 5)
    begun = makes[first](parts, **SETTINGS)
    train(begun, parts, 3)
    finished = makes[second](parts, **SETTINGS)
    finished.load_state_dict(copy.deepcopy(begun.state_dict()))
    train(finished, parts, 2, start=3)
    for one, two in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


def test_parameters_that_join_later_have_their_own_step():
    ours, theirs = model(), model()
    for parameters, make in ((ours, AdamW), (theirs, torch.optim.AdamW)):
        optimizer = make(parameters, **SETTINGS)
        parameters[0].grad = drawn(40, 33)
        optimizer.step()
        parameters[1].grad = drawn(7)
        optimizer.step()
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


def test_a_schedule_changes_the_rate():
    parameters = model()
    optimizer = AdamW(parameters, lr=1.0, weight_decay=0.0)
    optimizer.param_groups[0]["lr"] = 0.0
    before = parameters[0].detach().clone()
    train(optimizer, parameters, 1)
    assert same_bits(parameters[0].detach(), before)


def test_transposed_and_misaligned_parameters():
    base = drawn(200)
    ours = [torch.nn.Parameter(drawn(9, 5).T), torch.nn.Parameter(base[3:60])]
    theirs = [torch.nn.Parameter(each.detach().clone(memory_format=torch.preserve_format)) for each in ours]
    for parameters, make in ((ours, AdamW), (theirs, torch.optim.AdamW)):
        for number, each in enumerate(parameters):
            each.grad = torch.empty_like(each).copy_(drawn(*each.shape, seed=number))
        make(parameters, **SETTINGS).step()
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


def test_a_gradient_of_other_strides_than_its_parameter_is_refused():
    """Autograd gives none such; one put there by hand would be paired with the wrong values."""
    parameter = torch.nn.Parameter(drawn(6, 5))
    parameter.grad = drawn(5, 6).T
    with pytest.raises(ValueError, match=r"gradients\[0\] should be strides \(5, 1\); given: \(1, 6\)"):
        AdamW([parameter], **SETTINGS).step()


def test_nan_in_a_gradient_stays_with_its_value():
    (parameter, _) = parameters = model()
    parameter.grad = drawn(40, 33)
    parameter.grad[3, 4] = float("nan")
    AdamW(parameters, **SETTINGS).step()
    assert parameter.isnan().sum() == 1 and parameter[3, 4].isnan()
