"""Every kernel is compiled for sm_80, sm_90 and sm_100, as it would be launched there, on a machine without a GPU.

The operations run on meta tensors that say they are on a CUDA device, and each launch stops behind the compiler: so the
tiles, warps and stages are those that the operations choose, and no list of signatures has to follow them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from brickprof.kernels import _scalars, adamw, gemm, nonfinite, statistics
from brickprof.operators import launch
from brickprof.operators.operator import all_operators

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")

SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that a program may have."""
TYPES = {80: (torch.bfloat16,), 90: (torch.bfloat16, torch.float32), 100: (torch.bfloat16,)}
"""fp32 has no tensor cores, so little of it differs between devices; and ptxas is slow on it."""
TENSOR_CORES = ("gemm.tma", "attention.forward", "attention.dkdv", "attention.dq")


class Binary(NamedTuple):
    kernel: str
    types: tuple[torch.dtype, ...]
    compiled: Any

    def __str__(self) -> str:
        return f"{self.kernel} {self.types} with {self.compiled.metadata.num_warps} warps"


class Device:
    """As much of a GPU as Triton asks for before it launches."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return self.capability

    def get_current_stream(self, device=None):
        return 0


class Context:
    """What an autograd function asks of its own."""

    saved_tensors: tuple = ()

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (True,) * count

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors


def both_directions(function, *arguments):
    """In place of ``Function.apply``: forward, and backward at once."""
    context = Context(len(arguments))
    out = function.forward(context, *arguments)
    outs = out if isinstance(out, tuple) else (out,)
    function.backward(context, *(torch.empty_like(each) for each in outs))
    return out


def anything(*size, generator=None, device=None):
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return torch.empty(shape, device="meta")


def any_whole(low, high, shape, generator=None, device=None):
    return torch.empty(shape, dtype=torch.int64, device="meta")


@contextlib.contextmanager
def on(capability: int, *, address: int = 0):
    """Inside it operations compile for a device and launch nothing. Yields the binaries, as they come."""
    found: list[Binary] = []

    def compile_only(brick, grid, *, needs=None, bytes_moved=0, flops=0, **arguments):
        tensors = (getattr(each, "base", each) for each in arguments.values())
        types = tuple(each.dtype for each in tensors if isinstance(each, torch.Tensor))
        found.append(Binary(brick.name, types, brick.function.run(grid=grid, warmup=True, **arguments)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch.Kernel, "launch", compile_only)
        patch.setattr(launch, "_multiprocessors", lambda index: 132)
        patch.setattr(torch.autograd.Function, "apply", classmethod(both_directions))
        patch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
        patch.setattr(torch.Tensor, "data_ptr", lambda tensor: address)
        patch.setattr(gemm, "_has_accelerator", lambda _index: capability >= 90)
        patch.setattr(torch, "randn", anything)
        patch.setattr(torch, "randint", any_whole)
        patch.setattr(driver, "_active", Device(capability))
        try:
            yield found
        finally:
            for brick in launch._kernels.values():
                brick.function.device_caches.pop(capability, None)


def call(operator, sizes, dtype) -> None:
    arguments = operator.inputs(sizes, dtype, torch.Generator())
    given = {name: each.to("meta") if isinstance(each, torch.Tensor) else each for name, each in arguments.items()}
    for name in operator.differentiable:
        given[name].requires_grad_()
    operator.function(**given)


def call_everything(dtype: torch.dtype) -> None:
    for name, operator in all_operators().items():
        if name != "linear_logprob":  # made of gemm and logprob, and has autograd inside
            sizes = operator.large[-1 if dtype == torch.float32 else 0]
            call(operator, sizes, dtype)
    for tile in gemm.TILES if dtype != torch.float32 else ():
        x, w = (torch.empty(size, 4096, dtype=dtype, device="meta") for size in (tile.m, 4096))
        gemm.product(a=x, b=w.T, tile=tile)
    odd = torch.empty(512, 513, dtype=dtype, device="meta")[:, :512]  # rows that begin at no multiple of 16 bytes
    gemm.product(a=odd, b=odd.T)
    parameters = [torch.empty(1000, 7, dtype=dtype, device="meta") for _ in range(2)]
    for tensors in (parameters, parameters[:1]):
        keeper = statistics.Statistics()
        keeper(tensors)
        keeper.sample(tensors)
    nonfinite.NonFinite()(torch.empty(1, device="meta"), parameters)
    page = torch.empty(4 * _scalars.ROOM, dtype=torch.int64, device="meta")
    _scalars._gather.launch((_scalars.ROOM,), page=page, ROOM=_scalars.ROOM, BLOCK=_scalars._BLOCK, num_warps=1)
    adamw.Update()(
        parameters=parameters, gradients=parameters, exp_avg=parameters, exp_avg_sq=parameters,
        step=1, lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1,
    )  # fmt: skip


@functools.cache
def binaries(capability: int) -> tuple[Binary, ...]:
    with on(capability) as found:
        for dtype in TYPES[capability]:
            call_everything(dtype)
    return tuple(found)


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
def test_every_kernel_compiles_and_fits_in_shared_memory(capability):
    found = binaries(capability)
    missing = set(launch.counts()) - {each.kernel for each in found}
    assert missing == ({"gemm.tma"} if capability < 90 else set())
    for each in found:
        assert each.compiled.metadata.shared <= SHARED[capability], f"{each}: {each.compiled.metadata.shared} bytes"
        assert each.compiled.asm["cubin"]


def test_products_use_the_tensor_cores_of_sm_90():
    found = [each for each in binaries(90) if each.kernel in TENSOR_CORES and torch.bfloat16 in each.types]
    assert {each.kernel for each in found} == set(TENSOR_CORES)
    for each in found:
        if each.compiled.metadata.num_warps >= 4 and not _is_a_small_tile(each):
            assert "wgmma" in each.compiled.asm["ptx"], each
        assert "mma" in each.compiled.asm["ptx"], each


def _is_a_small_tile(binary: Binary) -> bool:
    """Fewer than 64 rows: wgmma has none so small."""
    return binary.kernel == "gemm.tma" and "wgmma" not in binary.compiled.asm["ptx"] and _rows(binary) < 64


def _rows(binary: Binary) -> int:
    constants = binary.compiled.src.constants
    return next(value for path, value in constants.items() if binary.compiled.src.fn.arg_names[path[0]] == "BM")


def test_fp32_products_are_not_tf32():
    found = [each for each in binaries(90) if each.kernel in ("gemm.pointers", *TENSOR_CORES)]
    wide = [each for each in found if torch.bfloat16 not in each.types]
    assert wide
    assert [str(each) for each in wide if "tf32" in each.compiled.asm["ptx"]] == []


def test_operands_that_are_not_aligned_take_pointers():
    with on(90, address=2) as found:
        call(all_operators()["gemm"], {"m": 200, "n": 512, "k": 512}, torch.bfloat16)
    assert {each.kernel for each in found} == {"gemm.pointers"}
    assert all("wgmma" in each.compiled.asm["ptx"] for each in found)


def rows_changed(operator, rows: int):
    name = next(iter(operator.large[0]))  # rows, m or batch: what is not fixed in a model comes first
    return {**operator.large[0], name: rows}


@pytest.mark.parametrize("name", sorted(set(all_operators()) - {"linear_logprob", "cross_entropy"}))
def test_any_number_of_rows_is_one_binary(name):
    """DIM-002: each variant is compiled once, and there are few."""
    operator = all_operators()[name]
    with on(90) as found:
        for rows in (1, 2, 16, 200, 1001, 4096) if name not in ("gemm", "lm_head") else (200, 1000, 1001, 4096):
            call(operator, rows_changed(operator, rows), torch.bfloat16)
        many = {each.compiled.hash for each in found}
        del found[:]
        call(operator, rows_changed(operator, 300), torch.bfloat16)
        one = {each.compiled.hash for each in found}
    assert many == one != set()


def test_a_product_of_any_size_is_one_of_few_binaries():
    with on(90) as found:
        for m in (1, 2, 16, 17, 64, 65, 100, 128, 129, 1000, 4096):
            for n, k in ((4096, 4096), (11008, 4096), (4096, 11008), (32000, 4096), (264, 72)):
                x, w = (torch.empty(size, k, dtype=torch.bfloat16, device="meta") for size in (m, n))
                gemm.product(a=x, b=w.T)
    assert {each.kernel for each in found} == {"gemm.tma"}
    assert len({each.compiled.hash for each in found}) <= len(gemm.TILES)


def cuobjdump() -> Path | None:
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return path if path.is_file() else None


SPILLED = {"attention.dkdv": 64}
"""Bytes a thread of the stack that a 16-bit kernel is known to use on sm_90; of all others none."""


def stack(binary: Binary, folder: Path) -> int:
    file = folder / "kernel.cubin"
    file.write_bytes(binary.compiled.asm["cubin"])
    shown = subprocess.run([cuobjdump(), "-res-usage", file], capture_output=True, text=True, check=True).stdout
    words = dict(word.split(":") for word in shown.split() if word.count(":") == 1)
    return int(words["STACK"]) + int(words["LOCAL"])


@pytest.mark.skipif(cuobjdump() is None, reason="Triton came without cuobjdump")
def test_16_bit_kernels_do_not_spill_on_sm_90(tmp_path):
    found = {each.compiled.hash: each for each in binaries(90) if torch.bfloat16 in each.types}
    used = [(each, stack(each, tmp_path)) for each in found.values()]
    assert used
    assert [f"{each}: {size} bytes" for each, size in used if size > SPILLED.get(each.kernel, 0)] == []


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_launch_takes_is_made_before_and_nothing_is_launched(monkeypatch, fails):
    """The launcher too, for which Triton calls a C compiler; where that fails, the first launch makes it."""
    made = []

    class Function:
        arg_names = params = ()

        def run(self, *, grid, warmup, **arguments):
            assert warmup
            return SimpleNamespace(src="source", metadata=arguments)

    def launcher(source, metadata):
        made.append((source, metadata))
        if fails:
            raise RuntimeError("no compiler")

    monkeypatch.setattr(driver, "_active", SimpleNamespace(launcher_cls=launcher))
    monkeypatch.setattr(launch, "_kernels", {})
    kernel = launch.Kernel(Function(), "pretended")
    kernel.prepare(BLOCK=64, num_warps=1)
    assert made == [("source", {"BLOCK": 64, "num_warps": 1})] and not kernel.launches
