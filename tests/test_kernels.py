"""The kernels, on a CPU: each file of tests/kernels/ in a process of its own, in Triton's interpreter.

The interpreter has to be asked for before triton is imported, and would then be everybody's; hence the processes.
What happens without it is tested here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from brickprof.kernels import gemm
from brickprof.operators import launch
from brickprof.operators.likeness import likeness
from brickprof.operators.operator import all_operators
from brickprof.reference.__main__ import main

CASES = Path(__file__).with_name("kernels")
REPOSITORY = CASES.parents[1]

plain = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="in the interpreter kernels do run")


@pytest.mark.parametrize("case", sorted(path.stem for path in CASES.glob("case_*.py")))
def test_in_the_interpreter(case):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "BRICKPROF"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES / f"{case}.py")],
        cwd=REPOSITORY, env=environment | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_every_operation_lies_in_the_file_of_its_name():
    """One operation a file: what a file exports is found without a list."""
    found = {name: operator.function.__module__ for name, operator in all_operators().items()}
    names = {
        "gemm", "lm_head", "rmsnorm", "rope", "attention", "silu", "gelu", "swiglu", "softmax", "logprob",
        "cross_entropy", "linear_logprob", "embedding", "transpose",
    }  # fmt: skip
    assert {name: found.get(name) for name in names} == {name: f"brickprof.kernels.{name}" for name in names}


@plain
@pytest.mark.parametrize("name", sorted(all_operators()))
def test_on_a_cpu_an_operation_says_that_it_cannot_run(name):
    operator = all_operators()[name]
    arguments = operator.inputs(operator.sizes[0], torch.float32, torch.Generator().manual_seed(0))
    with pytest.raises(launch.CannotLaunch, match=r"runs on CUDA devices.*cpu.*fallback"):
        operator.function(**arguments)
    before = launch.fallbacks().get(name, 0)
    with launch.fallback():
        found = operator.function(**arguments)
    torch.testing.assert_close(found, operator.reference(**arguments), atol=0, rtol=0)
    assert launch.fallbacks()[name] > before
    with pytest.raises(launch.CannotLaunch):
        operator.function(**arguments)


@plain
def test_a_fallback_is_told():
    told = []

    class Ear:
        def begin(self, launched):
            raise AssertionError

        def fell_back(self, operation, reason):
            told.append((operation, reason))

    before = launch.listen(Ear())
    try:
        with launch.fallback():
            gemm.gemm(x=torch.ones(2, 3), w=torch.ones(4, 3))
    finally:
        launch.listen(before)
    assert [operation for operation, _ in told] == ["gemm"] and "cpu" in told[0][1]


@plain
def test_triton_on_a_cpu_is_one_clear_error(capsys):
    assert main(["--kernels", "triton", "--device", "cpu", "--steps", "1"]) == 2
    error = capsys.readouterr().err
    assert "--kernels auto" in error and "TRITON_INTERPRET=1" in error
    assert "Traceback" not in error


def test_kernels_that_are_not_known_are_named(capsys):
    assert main(["--set", "kernels=cuda"]) == 2
    assert "auto, triton, torch" in capsys.readouterr().err


def test_what_is_bound_is_a_function_of_addresses():
    bound = launch.Bound(SimpleNamespace(heard=True, launches=0), (3,), {"a": 1})
    ran = []
    bound._run, bound._places = lambda grid, values: ran.append((grid, list(values))), {"a": 0, "b": 1, "c": 2}
    bound._values = [1, 2, 3]
    bound.function_of("c", "a")(7, 8)
    assert ran == [((3, 1, 1), [8, 2, 7])] and bound._brick.launches == 1


class Binary:
    """A compiled kernel that notes its launches."""

    function, packed_metadata = "function", "metadata"

    def __init__(self):
        self.ran = []

    def run(self, *given):
        self.ran.append(given)


@pytest.mark.parametrize(("current", "hooked", "straight"), [(2, False, True), (0, False, False), (2, True, False)])
def test_a_launch_at_home_is_as_short_as_can_be(monkeypatch, current, hooked, straight):
    from triton import knobs
    from triton.runtime import driver

    from brickprof.operators.queueing import at_home

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current, raising=False)
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_stream=lambda device: f"stream of {device}"))
    monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [print] if hooked else [])
    binary, abroad = Binary(), []
    at_home(binary, (3, 4, 1), [0, 1024], 2, lambda *given: abroad.append(given))(7, 8)
    expected = (3, 4, 1, "stream of 2", "function", "metadata", None, None, None, 7, 8, 0, 1024)
    assert (binary.ran, abroad) == (([expected], []) if straight else ([], [(7, 8)]))


@pytest.mark.parametrize("torch_has_it", [True, False])
def test_tensors_that_are_like_others_are_told_from_those_that_are_not(monkeypatch, torch_has_it):
    if not torch_has_it:
        monkeypatch.setitem(sys.modules, "torch._C._dynamo.guards", None)
    tensors = [torch.zeros(4, 5), torch.zeros(5, 4).t(), torch.zeros(3, dtype=torch.bfloat16)]
    alike = likeness(tensors)
    assert (type(alike).__name__ == "builtin_function_or_method") is torch_has_it
    assert alike(*(each.clone() for each in tensors)) and alike(*tensors)
    others = (torch.zeros(4, 6), torch.zeros(1, 1).expand(4, 5), torch.zeros(5, 4).t(), torch.zeros(4, 5).double())
    for other in (*others, torch.zeros(4, 5, device="meta"), torch.nn.Parameter(torch.zeros(4, 5)), None):
        assert not alike(other, *tensors[1:])
    assert not alike(*tensors[:2], torch.zeros(3, dtype=torch.float16))
