"""Launches that skip Triton's search for the binary: only where Triton would find the same one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.tools.tensor_descriptor import TensorDescriptor

from brickprof.capture.taps import triton_calls
from brickprof.operators import queueing
from brickprof.operators.launch import Kernel

_storage = torch.zeros(4096, dtype=torch.float64)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32]))
    return _storage.view(dtype)[draw(st.integers(0, 20)) :][: draw(st.integers(1, 64))]


@st.composite
def descriptors(draw: st.DrawFn) -> TensorDescriptor:
    base = torch.zeros(64, 64, dtype=draw(st.sampled_from([torch.bfloat16, torch.float16])))
    return TensorDescriptor(base, [64, 64], [64, 1], draw(st.sampled_from([[16, 32], [32, 16], [16, 64]])))


numbers = st.integers(-(2**62), 2**62) | st.integers(-40, 40) | st.integers(2**31 - 20, 2**31 + 20)
arguments = numbers | tensors() | descriptors() | st.none() | st.floats() | st.booleans()


def as_triton_does(value: object) -> object:
    backend = CUDABackend(GPUTarget("cuda", 90, 32))
    return native_specialize_impl(type(backend), value, False, True, True)


@given(st.lists(arguments, min_size=2, max_size=12))
def test_arguments_that_are_alike_have_one_binary(values):
    seen: dict[object, object] = {}
    for value in values:
        told = as_triton_does(value)
        assert seen.setdefault(queueing._likeness(value), told) == told


@given(numbers, numbers)
def test_numbers_that_triton_tells_apart_are_not_alike(one, other):
    if as_triton_does(one) != as_triton_does(other):
        assert queueing._likeness(one) != queueing._likeness(other)


class Parameter:
    def __init__(self, name: str, is_constexpr: bool = False) -> None:
        self.name, self.is_constexpr = name, is_constexpr


class Compiled:
    function, packed_metadata = "function", "metadata"

    def __init__(self, log: list[object]) -> None:
        self.run = lambda *given: log.append(("straight", *given))
        self._log = log

    def __getitem__(self, grid):
        return lambda *given: self._log.append(("hooked", grid, *given))


class Function:
    """As much of a jitted function as is asked for a launch."""

    arg_names = ("x", "n", "BLOCK")

    def __init__(self) -> None:
        self.params = [Parameter("x"), Parameter("n"), Parameter("BLOCK", is_constexpr=True)]
        self.pre_run_hooks: list[object] = []
        self.log: list[object] = []

    def __getitem__(self, grid):
        def launch(**given):
            self.log.append(("triton", grid))
            return Compiled(self.log)

        return launch


@pytest.fixture
def function(monkeypatch):
    from triton.runtime import driver

    class Active:
        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 77

    monkeypatch.setattr(driver, "_active", Active(), raising=False)
    monkeypatch.setattr(type(driver), "active", property(lambda self: Active()))
    return Function()


def ways(function: Function) -> list[str]:
    return [each[0] for each in function.log]


def test_the_second_launch_of_a_binary_goes_straight_with_its_own_values(function):
    queue, x, y = queueing.Queue(function), torch.zeros(8), torch.zeros(8)
    first = queue((4,), {"x": x, "n": 32, "BLOCK": 16})
    again = queue((5, 2), {"x": y, "n": 48, "BLOCK": 16})
    assert again is first
    assert function.log == [
        ("triton", (4,)),
        ("straight", 5, 2, 1, 77, "function", "metadata", None, None, None, y.data_ptr(), 48, 16),
    ]


@pytest.mark.parametrize(
    "other", [{"n": 33}, {"n": 2**31}, {"n": 1}, {"BLOCK": 32}, {"x": torch.zeros(8).double()}, {"num_warps": 8}]
)
def test_a_launch_that_may_have_another_binary_asks_triton(function, other):
    queue = queueing.Queue(function)
    known = {"x": torch.zeros(8), "n": 32, "BLOCK": 16, "num_warps": 4}
    queue((4,), known)
    queue((4,), {**known, **other})
    assert ways(function) == ["triton", "triton"]


def test_hooks_see_every_launch(function, monkeypatch):
    from triton import knobs

    queue, given = queueing.Queue(function), {"x": torch.zeros(8), "n": 32, "BLOCK": 16}
    queue((4,), given)
    monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [print])
    queue((4,), given)
    function.pre_run_hooks.append(print)
    queue((4,), given)
    assert ways(function) == ["triton", "hooked", "triton"]


def test_whoever_listens_to_calls_hears_every_launch_of_the_run(function):
    queue, given = queueing.Queue(function), {"x": torch.zeros(8), "n": 32, "BLOCK": 16}
    queue((4,), given)
    assert triton_calls.listen(print)
    try:
        queue((4,), given)
        queue((4,), given, heard=False)
    finally:
        triton_calls.stop()
    queue((4,), given)
    assert ways(function) == ["triton", "triton", "straight", "straight"]


@pytest.mark.parametrize("heard", [True, False])
def test_a_bound_launch_is_heard_where_it_is_given_tensors(function, heard):
    kernel = Kernel(function, "test.bound")
    kernel = kernel if heard else kernel.unheard()
    bound, x = kernel.bind((4,), n=32, BLOCK=16), torch.zeros(8)
    bound.launch(x=x)
    queueing.attend(True)
    try:
        bound.launch(x=x)
        bound.launch(x=x.data_ptr())
        bound.launch(x=x, n=48)
    finally:
        queueing.attend(False)
    bound.launch(x=x)
    through = "triton" if heard else "straight"
    assert ways(function) == ["triton", through, "straight", through, "straight"]
    assert kernel.launches == (5 if heard else 0)
