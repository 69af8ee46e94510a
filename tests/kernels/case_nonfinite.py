"""The kernel that counts what is not finite, and only where a gate says that there is something to count."""

from __future__ import annotations

import math

import pytest
import torch
from problems import drawn

from brickprof.kernels import nonfinite as module
from brickprof.kernels.nonfinite import SLOTS, NonFinite, readable, reference, size_of
from brickprof.operators.launch import CannotLaunch

TYPES = [torch.float32, torch.float16, torch.bfloat16]
OPEN = [math.nan, math.inf, -math.inf]


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """The interpreter is slow."""
    monkeypatch.setitem(module._CONSTANTS, "PROGRAMS", 2)


def spoilt(size, dtype, seed=0):
    x = drawn(size, seed=seed, dtype=dtype)
    x[0], x[size // 2], x[-1] = math.nan, math.inf, -math.inf
    return x


@pytest.mark.parametrize("gate", OPEN)
def test_all_types_and_many_sizes_at_once(gate):
    tensors = [spoilt(size, dtype, size) for dtype in TYPES for size in (1, 3, 1023, 1024, 1025, 5000)]
    tensors += [drawn(77, seed=1, dtype=dtype) for dtype in TYPES]
    told = torch.tensor(gate)
    assert torch.equal(NonFinite()(told, tensors), reference(told, tensors))


@pytest.mark.parametrize("gate", [0.0, -0.0, 1e-42, 3.4e38, -3.4e38])
def test_nothing_is_read_behind_a_finite_gate(gate):
    assert NonFinite()(torch.tensor(gate), [spoilt(3000, torch.float32)]).tolist() == [[0, 0]]


@pytest.mark.parametrize("dtype", TYPES)
def test_the_largest_and_smallest_numbers_are_finite(dtype):
    about = torch.finfo(dtype)
    x = torch.tensor([about.max, about.min, about.tiny, about.smallest_normal / 2, 0.0, -0.0], dtype=dtype)
    assert NonFinite()(torch.tensor(math.nan), [x]).tolist() == [[0, 0]]


def test_payloads_and_signs_of_nan_count():
    bits = torch.tensor([0x7FC00000, 0x7F800001, -1, -0x800000, 0x7F800000], dtype=torch.int32)
    assert NonFinite()(torch.tensor(math.nan), [bits.view(torch.float32)]).tolist() == [[3, 2]]


def test_others_at_other_places_and_fewer_of_them():
    asked, gate = NonFinite(), torch.tensor(math.nan)
    for size in (100, 2000, 100):
        tensors = [spoilt(size, torch.float32, seed) for seed in range(3)]
        assert torch.equal(asked(gate, tensors), reference(gate, tensors))
        assert torch.equal(asked(gate, tensors[1:]), reference(gate, tensors[1:]))


def test_images_whose_channels_come_last_are_read_and_gaps_are_not():
    image = drawn(2 * 3 * 4 * 5, dtype=torch.float32).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    image[1, 2, 3, 4] = math.nan
    assert readable(image) and not readable(image[:, :, ::2]) and not readable(image.double())
    assert NonFinite()(torch.tensor(math.nan), [image]).tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("gate", "tensors"),
    [
        (torch.ones(2), [torch.ones(3)]),
        (torch.ones(1, dtype=torch.float64), [torch.ones(3)]),
        (torch.ones(1), []),
        (torch.ones(1), [torch.ones(4, 4)[:, :2]]),
        (torch.ones(1), [torch.ones(3, dtype=torch.int32)]),
    ],
)
def test_what_it_does_not_take(gate, tensors):
    with pytest.raises(CannotLaunch, match="nonfinite"):
        NonFinite()(gate, tensors)


def test_counts_are_added_from_a_row_on_in_as_many_launches_as_it_takes():
    gate, tensors = (
        torch.tensor(math.nan),
        [spoilt(size, TYPES[size % 3], size) for size in range(3, 3 + 2 * SLOTS + 1)],
    )
    out = torch.zeros((2 * SLOTS + 8, 2), dtype=torch.int64)
    for _ in range(2):
        NonFinite().add(gate, [number for each in tensors for number in (each.data_ptr(), size_of(each))], out, 5)
    assert torch.equal(out[5:-2], 2 * reference(gate, tensors)) and not out[:5].any() and not out[-2:].any()
    with pytest.raises(CannotLaunch, match=r"33 rows from 8 on.*40"):
        NonFinite().add(gate, [0, 0] * len(tensors), out, 8)
