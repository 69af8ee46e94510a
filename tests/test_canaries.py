"""Kernels that write outside of their arguments: guards, which launches may be made twice, and C-BUFSIZE-001."""

from __future__ import annotations

import functools
import inspect
import os
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import brickprof
from brickprof.capture import guards, shadows
from brickprof.capture.guards import Guarded, Touch, Unfit, guard_bytes
from brickprof.capture.shadows import Refused
from brickprof.capture.taps import triton_calls, triton_launches
from brickprof.capture.taps.triton_calls import Call
from brickprof.contracts import registry
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.diagnosis import diagnose
from brickprof.rules.canaries import Canaries
from brickprof.rules.story import Story
from tests.making import Made

# -- guards


def written(*tensors: torch.Tensor, at: int = 0, first: int, count: int) -> list[Touch]:
    """What shows when ``count`` elements of tensor ``at`` are written from element ``first`` of its storage on."""
    laid_out = Guarded(tensors)
    copy = laid_out.copy()[at]
    start = copy.storage_offset() - tensors[at].storage_offset()
    copy.as_strided((count,), (1,), start + first).fill_(7)
    return laid_out.touches(laid_out.changes().tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.int8])
@pytest.mark.parametrize("count", [1, 5, 1024])
@pytest.mark.parametrize("gap", [0, 3])
def test_a_write_outside_is_told_to_the_byte(dtype, count, gap):
    x, other = torch.ones(1000, dtype=dtype), torch.ones(7)
    size, guard = x.element_size(), guard_bytes(1000 * x.element_size())
    told = (count * size, gap * size, (gap + count) * size, guard)
    assert written(x, other, first=1000 + gap, count=count) == [Touch(0, "behind", *told)]
    assert written(other, x, at=1, first=-gap - count, count=count) == [Touch(1, "before", *told)]


@pytest.mark.parametrize("numel", [0, 1, 37, 4096])
def test_a_write_inside_is_nobodys_business(numel):
    assert written(torch.zeros(numel), torch.zeros(3), first=0, count=numel) == []


def test_a_copy_of_what_lies_behind_one_argument_shows_behind_the_other():
    """An unmasked copy moves one guard into the other: were they alike, nothing would have changed."""
    for dtype in (torch.float32, torch.int64, torch.uint8):
        laid_out = Guarded([torch.ones(100, dtype=dtype), torch.zeros(100, dtype=dtype)])
        x, y = (each.as_strided((128,), (1,), each.storage_offset()) for each in laid_out.copy())
        y.copy_(x)
        (touch,) = laid_out.touches(laid_out.changes().tolist())
        assert (touch.slot, touch.side, touch.bytes) == (1, "behind", 28 * x.element_size())


def test_a_sum_of_two_guards_shows():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensors = [torch.ones(64, dtype=dtype) for _ in range(10)]
        for place in range(1, len(tensors)):
            laid_out = Guarded(tensors)
            wide = [each.as_strided((96,), (1,), each.storage_offset()) for each in laid_out.copy()]
            wide[0] += wide[place]
            assert {touch.slot for touch in laid_out.touches(laid_out.changes().tolist())} == {0}, (dtype, place)


def test_copies_are_as_the_tensors_were():
    base = torch.arange(4096, dtype=torch.float32)
    tensors = [
        base[5:905].view(30, 30).t(), base, torch.randn(7, 3).half(), torch.empty(0), torch.tensor(3),
        torch.ones(5)[:1].expand(6), torch.zeros(9, dtype=torch.bool), torch.randn(64, 64)[:, 7],
    ]  # fmt: skip
    before = [each.clone() for each in tensors]
    laid_out = Guarded(tensors)
    for tensor, copy in zip(tensors, copies := laid_out.copy(), strict=True):
        assert torch.equal(tensor, copy) and copy.dtype is tensor.dtype and copy.stride() == tensor.stride()
        assert not tensor.numel() or (copy.data_ptr() - tensor.data_ptr()) % 256 == 0
        assert not copy.requires_grad
    assert [laid_out.whole(place) for place in range(4)] == [False, True, True, True]
    copies[1][5] = -1
    assert copies[0][0, 0] == -1, "what shared a storage does so again"
    assert all(torch.equal(one, other) for one, other in zip(tensors, before, strict=True))
    assert laid_out.touches(laid_out.changes().tolist()) == []


def test_a_write_beside_a_view_is_not_told():
    base = torch.zeros(100)
    assert written(base[:40], first=40, count=60) == []
    assert [touch.bytes for touch in written(base[:40], first=40, count=61)] == [4]


def test_the_tensors_are_not_held_until_the_numbers_come_home():
    x = torch.ones(10)
    laid_out, alive = Guarded([x]), weakref.ref(x)
    laid_out.copy()
    changes = laid_out.changes()
    del x
    assert alive() is None and laid_out.touches(changes.tolist()) == []


def test_what_cannot_be_laid_out_is_refused():
    memory = bytearray(64)
    one, other = (torch.frombuffer(memory, dtype=torch.uint8, offset=at, count=32) for at in (0, 16))
    with pytest.raises(Unfit, match="overlap"):
        Guarded([one, other])
    with pytest.raises(Unfit, match="type"):
        Guarded([torch.zeros(2, dtype=torch.complex128)])
    with pytest.raises(Unfit, match="layout"):
        Guarded([torch.zeros(2, 2).to_sparse()])


def test_guards_grow_with_what_they_guard_up_to_a_bound():
    sizes = [guard_bytes(each) for each in (0, 1000, 100_000, 1 << 30)]
    assert sizes == sorted(sizes) and sizes[0] == 64 * 1024 and sizes[-1] == 4 << 20 and sizes[2] >= 300_000


# -- which launches may be made twice


class InterpretedFunction:
    """A kernel for tests: Python that is given tensors, under the name that Triton's interpreter has."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.__name__, self.pre_run_hooks = fn, fn.__name__, []
        self.arg_names = list(inspect.signature(fn).parameters)

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if not warmup:
            self.fn(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Any:
        return functools.partial(self.run, grid=grid, warmup=False)


def reaching(tensor: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """As a pointer would: from ``first`` on, whatever the tensor's end; cut where the memory itself ends."""
    start = max(tensor.storage_offset() + first, 0)
    room = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((max(min(tensor.storage_offset() + first + count, room) - start, 0),), (1,), start)


@InterpretedFunction
def scale(x, out, n, BLOCK: "tl.constexpr"):  # type: ignore[name-defined]  # noqa: F821, UP037
    target = reaching(out, 0, n)
    target.copy_(reaching(x, 0, target.numel()) * 2)


@InterpretedFunction
def accumulate(total, x, n):
    total[:n] += x[:n]


def call(function: Any, *args: Any, benchmark: bool = False, **kwargs: Any) -> Call:
    return Call(function, type(function).run, args, {"grid": (1,), "warmup": False, **kwargs}, "train.py:1", benchmark)


def refused(function: Any, *args: Any, **kwargs: Any) -> str:
    made = call(function, *args, **kwargs)
    try:
        tensors = shadows.arguments(made)
        shadows.check(made, tensors)
        shadows.guarded(tensors)
    except Refused as reason:
        return str(reason)
    return ""


def test_launches_that_could_be_noticed_are_refused(monkeypatch):
    x, out = torch.ones(4), torch.ones(4)
    assert refused(scale, x, out, 4, BLOCK=4) == ""
    assert refused(scale, x, out=out, n=4, BLOCK=4) == ""
    assert "no tensor" in refused(scale, 1, 2, 3, BLOCK=4)
    assert "addresses" in refused(scale, torch.ones(4, dtype=torch.int64), out, 4, BLOCK=4)
    assert "addresses" in refused(scale, x, out, x.data_ptr(), BLOCK=4)
    assert "tuple" in refused(scale, (x, 1), out, 4, BLOCK=4)
    assert "descriptor" in refused(scale, SimpleNamespace(block_shape=[4], base=x), out, 4, BLOCK=4)
    assert "another kind" in refused(scale, SimpleNamespace(data_ptr=x.data_ptr), out, 4, BLOCK=4)
    assert "several devices" in refused(scale, x.to("meta"), out, 4, BLOCK=4)
    assert "tuned" in refused(scale, x, out, 4, BLOCK=4, benchmark=True)
    monkeypatch.setattr(shadows, "_MOST_ON_HOST", 1000)
    assert "too large" in refused(scale, x, out, 4, BLOCK=4)


def test_arguments_of_a_compiled_kernel_are_on_its_device():
    compiled = type("JITFunction", (InterpretedFunction,), {})(scale.fn)
    assert "not in a CUDA" in refused(compiled, torch.ones(4), torch.ones(4), 4, BLOCK=4)


def test_nobody_elses_hook_hears_of_a_launch_that_was_ours(monkeypatch):
    monkeypatch.setattr(scale, "pre_run_hooks", [print])
    assert "listens" in refused(scale, torch.ones(4), torch.ones(4), 4, BLOCK=4)
    monkeypatch.undo()
    chain = SimpleNamespace(calls=[triton_launches._entered], add=None, remove=None)
    runtime = SimpleNamespace(launch_enter_hook=chain, launch_exit_hook=None)
    monkeypatch.setitem(sys.modules, "triton.knobs", SimpleNamespace(runtime=runtime))
    assert refused(scale, torch.ones(4), torch.ones(4), 4, BLOCK=4) == ""
    chain.calls.append(print)
    assert "listens" in refused(scale, torch.ones(4), torch.ones(4), 4, BLOCK=4)


def test_sizes_and_constants_are_told_apart():
    assert shadows.numbers(call(scale, None, None, 4, BLOCK=16, num_warps=4)) == ({"n": 4}, {"BLOCK": 16})


KERNELS = """
import triton
import triton.language as tl
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from brickprof.capture import shadows
from brickprof.capture.taps.triton_calls import Call

@triton.jit
def plain(x, labels, flags, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    label = tl.load(labels + o, mask=o < n, other=0)
    tl.atomic_add(out + label, tl.load(x + o, mask=o < n), mask=o < n)

@triton.jit
def table(x, labels, flags, out, n, B: tl.constexpr):
    tl.store(tl.load(labels).to(tl.pointer_type(tl.float32)), tl.load(x))

@triton.jit
def address(x, labels, flags, out, n, B: tl.constexpr):
    tl.store(n.to(tl.int64).to(tl.pointer_type(tl.float32)), tl.load(x))

@triton.jit
def lock(x, labels, flags, out, n, B: tl.constexpr):
    while tl.atomic_cas(flags, 0, 1) == 1:
        pass
    tl.store(out, tl.load(x))

@triton.jit
def loop(x, labels, flags, out, n, B: tl.constexpr):
    while n > 1:
        n = n // 2
    tl.store(out, tl.load(x) * n)

@triton.jit
def talk(x, labels, flags, out, n, B: tl.constexpr):
    tl.device_print("x", tl.load(x))

@triton.jit
def clock(x, labels, flags, out, n, B: tl.constexpr):
    tl.store(out, tl.extra.cuda.globaltimer().to(tl.float32))

class Device:
    # as much of a GPU as Triton asks for before it launches
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)
    def get_current_device(self):
        return 0
    def get_current_stream(self, device=None):
        return 0

driver.set_active(Device())
floats = torch.zeros(4)
args = (floats, floats.long(), floats.int(), floats, 4)
for kernel in (plain, table, address, lock, loop, talk, clock):
    made = Call(kernel, JITFunction.run, args, {"grid": (1,), "warmup": False, "B": 16}, "train.py:1", False)
    try:
        print(shadows._check_binary(shadows._compiled(made)))
    except shadows.Refused as reason:
        print(reason)
made = made._replace(kwargs={**made.kwargs, "unheard_of": 1})
try:
    shadows._compiled(made)
except shadows.Refused as reason:
    print(reason)
try:
    shadows._check_binary(None)
except shadows.Refused as reason:
    print(reason)
"""


def test_what_a_kernel_does_is_read_from_its_binary(tmp_path):
    pytest.importorskip("triton")
    script = tmp_path / "kernels.py"
    script.write_text(KERNELS)
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "plain", "it makes addresses of numbers", "it makes addresses of numbers",
        "it may wait for what others write", "loop", "it prints or asserts", "it holds assembly that may do anything",
        "it could not be launched (KeyError)", "its code is not known",
    ]  # fmt: skip


# -- in a training

ROOT = Path(__file__).parents[1]


@pytest.fixture
def pretended(monkeypatch):
    """The kernels above are Triton's, as far as anybody can tell."""
    monkeypatch.setitem(
        sys.modules, "triton.runtime.interpreter", SimpleNamespace(InterpretedFunction=InterpretedFunction)
    )
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", SimpleNamespace())


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, reach):
        out = torch.empty_like(x)
        scale[(1,)](x, out, x.numel() + reach, BLOCK=16)
        return out

    @staticmethod
    def backward(ctx, grad):
        out, total = torch.empty_like(grad), torch.zeros_like(grad)
        scale[(1,)](grad.contiguous(), out, grad.numel(), BLOCK=16)
        accumulate[(1,)](total, out, len(total))
        return total, None


def trained(out: Path | None, steps: int = 6, *, reach: int = 0, **options: Any) -> tuple[torch.Tensor, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for _ in range(steps):
            x = torch.randn(3, 8)
            loss = Scaled.apply(model(x), reach).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    if out is None:
        train()
        return model.weight.detach().clone(), None
    with brickprof.attach(model, optimizer, out=out, **options) as session:
        train()
    return model.weight.detach().clone(), brickprof.load(session.folder)


def events(run: Any, kind: str) -> list[dict[str, Any]]:
    return list(run.events[run.events.kind == kind].fields)


def verdict(run: Any) -> ContractResult:
    return Canaries().judge(Story.of(run), registry.library()[Canaries.contract])


@pytest.mark.parametrize("reach", [0, 4])
def test_training_is_the_same_to_the_bit(tmp_path, pretended, reach):
    untouched = InterpretedFunction.run
    plain, _ = trained(None, reach=reach)
    watched, run = trained(tmp_path, reach=reach, level="deep")
    assert torch.equal(plain, watched)
    assert events(run, "canaries")[-1]["checked"] > 0 and not events(run, "probe_off")
    assert InterpretedFunction.run is untouched


def test_a_healthy_kernel_passes_with_its_count(tmp_path, pretended):
    _, run = trained(tmp_path, 20, level="deep")
    told = events(run, "canaries")[-1]
    assert not events(run, "canary") and told["touched"] == 0 and told["partly"] == 0 and told["launches"] == 60
    # two lines launch one kernel, and one the other, 20 times each: the launches 1, 2, 3, 4, 8, 16
    assert told["kernels"] == {"scale": 12, "accumulate": 6} and told["checked"] == 18
    judged = verdict(run)
    assert judged.verdict is Verdict.PASS and "18 of 60 launches of 2 Triton kernels" in judged.observed


def test_a_kernel_that_writes_too_far_fails_with_its_line(tmp_path, pretended):
    _, run = trained(tmp_path, reach=4, level="deep")
    (violation,) = verdict(run).violations
    line = inspect.getsourcelines(Scaled)[1] + 4
    assert violation.brick == "scale" and f"test_canaries.py:{line}" in violation.symptom
    assert "16 bytes behind the end of out" in violation.symptom and violation.cause == "buffer-overflow"
    (first, *_) = events(run, "canary")
    assert first["touched"][0]["nearest"] == 0 and first["touched"][0]["farthest"] == 16
    (finding,) = [each for each in diagnose(run).findings if each.severity is Severity.ERROR]
    assert finding.contract == "C-BUFSIZE-001" and all(why.evidence for why in finding.whys)


def test_a_kernel_that_never_stops_is_told_a_few_times(tmp_path, pretended):
    _, run = trained(tmp_path, 130, reach=4, level="deep")
    assert len(events(run, "canary")) == 8 and events(run, "canaries")[-1]["touched"] == 9


def test_only_steps_that_are_captured_in_full_are_looked_at(tmp_path, pretended):
    _, run = trained(tmp_path / "one", level="standard")
    assert not events(run, "canaries") and verdict(run).verdict is Verdict.NOT_EVALUATED
    _, run = trained(tmp_path / "two", 16, level="standard", deep_at=4)
    (told,) = events(run, "canaries")[-1:]
    assert 0 < told["launches"] < 3 * 16


def test_launches_of_a_tuner_are_let_pass(tmp_path, pretended):
    triton = pytest.importorskip("triton")
    heard: list[Call] = []
    source = "def kernel_call(kernel, *args):\n    kernel.run(*args, grid=(1,), warmup=False)\n"
    names: dict[str, Any] = {}
    exec(compile(source, os.path.join(triton.__path__[0], "runtime", "autotuner.py"), "exec"), names)
    assert triton_calls.listen(heard.append)
    try:
        assert not triton_calls.listen(print), "one listens at a time"
        out = torch.ones(4)
        names["kernel_call"](scale, out, out, 4, 4)
        scale[(1,)](out, out, 4, BLOCK=4)
    finally:
        triton_calls.stop()
    assert [each.benchmark for each in heard] == [True, False]
    assert all(each.site.startswith("test_canaries.py:") for each in heard)


def test_a_listener_that_fails_does_not_reach_the_launch(pretended):
    def fails(_call: Call) -> None:
        raise ValueError("ours")

    out = torch.ones(4)
    assert triton_calls.listen(fails)
    try:
        scale[(1,)](out, out, 4, BLOCK=4)
    finally:
        triton_calls.stop()
    assert out.tolist() == [2, 2, 2, 2]


def test_a_probe_that_fails_is_switched_off_and_the_kernel_launched(tmp_path, pretended, monkeypatch):
    plain, _ = trained(None)
    monkeypatch.setattr(guards, "_changes", lambda *_: 1 / 0)
    watched, run = trained(tmp_path, level="deep")
    assert torch.equal(plain, watched)
    failures = [fields for fields in events(run, "probe_off") if fields["probe"] == "canaries"]
    assert len(failures) == 3 and verdict(run).verdict is Verdict.NOT_EVALUATED


SCRIPT = """
import torch
import triton
import triton.language as tl


@triton.jit
def shift(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=offsets < n)
    tl.store(out + offsets, value + 1, mask=offsets < n + {more})


model = torch.nn.Linear(9, 27)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    loss = model(torch.randn(1, 9)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shift[(1,)](torch.randn(27), torch.empty(27), 27, BLOCK=32)  # launched here
"""


@pytest.mark.parametrize(("more", "expected"), [(0, "PASS"), (1, "FAIL")])
def test_a_script_in_the_interpreter(tmp_path, more, expected):
    """One element behind 27 floats stays inside what the host's allocator hands out, so that nothing breaks here."""
    pytest.importorskip("triton")
    text = SCRIPT.replace("{more}", str(more))
    script = tmp_path / "train.py"
    script.write_text(text)
    command = [sys.executable, "-m", "brickprof", "run", "-o", "runs", "--no-live", "--level", "deep", str(script)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    run = brickprof.load(next((tmp_path / "runs").iterdir()))
    (contract,) = [each for each in diagnose(run).contracts if each.id == "C-BUFSIZE-001"]
    assert contract.verdict.value == expected, contract
    if more:
        line = next(number for number, each in enumerate(text.splitlines(), 1) if each.endswith("# launched here"))
        (finding,) = [each for each in diagnose(run).findings if each.contract == "C-BUFSIZE-001"]
        assert finding.brick == "shift" and f"train.py:{line}" in finding.symptom
        assert "4 bytes behind the end of out" in finding.symptom


# -- the rule


def argument(name: str, slot: int, numel: int, **changes: Any) -> dict[str, Any]:
    told = {
        "name": name, "slot": slot, "shape": [numel], "numel": numel, "dtype": "float32", "itemsize": 4, "offset": 0,
        "storage": 4 * numel, "whole": True,
    }  # fmt: skip
    return told | changes


def told(side: str = "behind", *, count: int = 96, near: int = 0, far: int = 96, **changes: Any) -> dict[str, Any]:
    touch = {"slot": 1, "side": side, "bytes": count, "nearest": near, "farthest": far, "guard": 65536}
    fields = {
        "kernel": "fused", "site": "train.py:40", "brick": 9, "sizes": {"n": 1000}, "constants": {"BLOCK": 1024},
        "arguments": [argument("x", 0, 1000), argument("out", 1, 1000)], "touched": [touch],
    }  # fmt: skip
    return fields | changes


def judged(*canaries: dict[str, Any], looked: dict[str, Any] | None = None) -> ContractResult:
    made = Made()
    made.owned()
    made.healthy(4)
    for fields in canaries:
        made.event("canary", 2, **fields)
    if looked is not None:
        made.event("canaries", 3, **looked)
    return verdict(made.run())


@pytest.mark.parametrize(
    ("fields", "cause", "why"),
    [
        (told(), "buffer-overflow", "1,024 is a multiple of BLOCK = 1,024"),
        (told(count=12_000, far=12_000, arguments=[argument("x", 0, 4000), argument("out", 1, 1000)]),
         "buffer-overflow", "4,000 is what x holds"),
        (told(sizes={"n": 1024}), "buffer-overflow", "1,024 is what it was told as n"),
        (told(constants={"BLOCK": 1000}), "buffer-overflow", "its grid and its masks"),
        (told("before", count=8, far=8), "out-of-bounds", "2 elements before the start of out"),
        (told(count=4, near=4096, far=4100), "out-of-bounds", "4,096 bytes behind the end of out are left alone"),
    ],
)  # fmt: skip
def test_the_distance_says_why(fields, cause, why):
    result = judged(fields)
    assert result.verdict is Verdict.FAIL
    (violation,) = result.violations
    assert violation.cause == cause and violation.brick == "fused" and "train.py:40" in violation.symptom
    assert why in violation.whys[-1].finding


def test_the_nearest_write_leads_and_every_kernel_is_one_finding():
    two = told()
    two["touched"] = [{**two["touched"][0], "slot": 0, "side": "before", "nearest": 512}, *two["touched"]]
    result = judged(two, told(), told(kernel="other"))
    assert [violation.brick for violation in result.violations] == ["fused", "other"]
    assert "of out" in result.violations[0].symptom and len(result.violations[0].evidence) == 2


def test_arguments_that_share_their_storage_are_both_named():
    shared = [argument("x", 1, 1000), argument("out", 1, 500, whole=False, storage=4000)]
    (violation,) = judged(told(arguments=shared)).violations
    assert "of x and out" in violation.symptom


def test_a_pass_needs_launches_that_were_looked_at():
    looked = {"launches": 9, "checked": 5, "partly": 0, "touched": 0, "distinct": 2, "refused": {"it prints": 1}}
    result = judged(looked=looked)
    assert result.verdict is Verdict.PASS and "5 of 9" in result.observed and "it prints" in result.observed
    assert judged().verdict is Verdict.NOT_EVALUATED
    none = judged(looked={**looked, "checked": 0})
    assert none.verdict is Verdict.NOT_EVALUATED and "it prints" in none.why
    assert judged(looked={**looked, "partly": 5}).verdict is Verdict.NOT_EVALUATED
    assert judged(looked={**looked, "touched": 1}).verdict is Verdict.NOT_EVALUATED


@pytest.mark.parametrize(
    "fields",
    [{}, {"touched": "all"}, {"touched": [3]}, {"touched": [{"bytes": 0}]}, {"touched": [{"bytes": "4"}]}],
)
def test_a_damaged_event_accuses_nobody(fields):
    assert judged({"kernel": "fused", **fields}).verdict is Verdict.NOT_EVALUATED


def test_an_event_that_has_lost_its_arguments_is_still_told():
    (violation,) = judged({"kernel": "fused", "touched": [{"bytes": 4, "farthest": 4}]}).violations
    assert "4 bytes behind the end of an argument" in violation.symptom
