"""Canaries on a real device: every write outside of an argument is told to the byte, and nothing else is touched.

Kernels that would write far outside are launched on copies only; one element too many stays inside the 512 bytes that
torch's allocator rounds up to, so that such a kernel can be launched for good.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("no CUDA device, or no compiled kernels", allow_module_level=True)

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

import brickprof  # noqa: E402
from brickprof.capture import shadows  # noqa: E402
from brickprof.capture.guards import Touch, guard_bytes  # noqa: E402
from brickprof.capture.shadows import Refused  # noqa: E402
from brickprof.capture.taps import triton_calls  # noqa: E402
from brickprof.capture.taps.triton_calls import Call  # noqa: E402
from brickprof.contracts import registry  # noqa: E402
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict  # noqa: E402
from brickprof.diagnosis import diagnose  # noqa: E402
from brickprof.rules.canaries import Canaries  # noqa: E402
from brickprof.rules.story import Story  # noqa: E402

N, BLOCK = 1000, 256


@triton.jit
def scaled(x, out, n, low, high, BLOCK: tl.constexpr):
    """Writes the elements from ``low`` on up to ``high``, whatever ``out`` holds."""
    offsets = low + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=(offsets >= 0) & (offsets < n), other=1.0)
    tl.store(out + offsets, value * 2, mask=offsets < high)


@triton.jit
def unmasked_copy(x, out, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets))


@triton.jit
def in_place(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offsets, tl.load(x + offsets, mask=offsets < n) * 0.5, mask=offsets < n)


@triton.jit
def counted(labels, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(labels + offsets, mask=offsets < n, other=0)
    tl.atomic_add(out + label, 1.0, mask=offsets < n)


@triton.jit
def through_a_table(table, count, BLOCK: tl.constexpr):
    target = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    offsets = tl.arange(0, BLOCK)
    tl.store(target + offsets, tl.load(target + offsets, mask=offsets < count) + 1, mask=offsets < count)


@triton.jit
def through_a_number(x, address, count, BLOCK: tl.constexpr):
    target = address.to(tl.pointer_type(tl.float32))
    offsets = tl.arange(0, BLOCK)
    tl.store(target + offsets, tl.load(x + offsets, mask=offsets < count) + 1, mask=offsets < count)


@triton.jit
def locked(lock, out, BLOCK: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(out, tl.load(out) + 1)
    tl.atomic_xchg(lock, 0)


def call(function: Any, *args: Any, grid: Any = (4,), **kwargs: Any) -> Call:
    run = triton.runtime.jit.JITFunction.run
    return Call(function, run, args, {"grid": grid, "warmup": False, **kwargs}, "train.py:1", False)


def looked(made: Call) -> list[Touch]:
    """What a launch on copies touches; the launch itself is not made."""
    tensors = shadows.arguments(made)
    shadows.check(made, tensors)
    laid_out = shadows.guarded(tensors)
    shadows.launch(made, tensors, laid_out.copy())
    return laid_out.touches(laid_out.changes().tolist())


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(N, device="cuda"), torch.zeros(N, device="cuda")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, N, []),
        (0, N + 1, [("behind", 4, 0, 4)]),
        (0, N + 1024, [("behind", 4096, 0, 4096)]),
        (-1, N, [("before", 4, 0, 4)]),
        (N + 512, N + 520, [("behind", 32, 2048, 2080)]),
        (-3, N + 2, [("before", 12, 0, 12), ("behind", 8, 0, 8)]),
    ],
)
def test_a_write_outside_is_told_to_the_byte_and_hurts_nobody(low, high, expected):
    x, out = pair()
    before = x.clone()
    grid = (triton.cdiv(max(high - low, 1), BLOCK),)
    told = looked(call(scaled, x, out, N, low, high, BLOCK=BLOCK, grid=grid))
    assert told == [Touch(1, *each, guard_bytes(4 * N)) for each in expected]
    assert torch.equal(x, before) and not out.any()


def test_a_copy_of_what_lies_behind_shows():
    x, out = pair()
    (touch,) = looked(call(unmasked_copy, x, out, BLOCK=BLOCK, grid=lambda meta: (triton.cdiv(N, meta["BLOCK"]),)))
    assert touch == Touch(1, "behind", 96, 0, 96, guard_bytes(4 * N))


def test_healthy_kernels_touch_nothing():
    x, _ = pair()
    kept = x.clone()
    assert looked(call(in_place, x, N, BLOCK=BLOCK)) == [] and torch.equal(x, kept)
    labels, counts = torch.randint(0, 10, (N,), device="cuda"), torch.zeros(10, device="cuda")
    assert labels.dtype is torch.int64
    assert looked(call(counted, labels, counts, N, BLOCK=BLOCK)) == [] and not counts.any()


def test_arguments_that_share_a_storage_share_it_again():
    base = torch.randn(2 * N, device="cuda")
    kept = base.clone()
    assert looked(call(scaled, base[:N], base[N:], N, 0, N, BLOCK=BLOCK)) == []
    assert looked(call(scaled, base[N:], base[:N], N, 0, N + 24, BLOCK=BLOCK)) == [], "inside the storage"
    (touch,) = looked(call(scaled, base[:N], base[N:], N, 0, N + 24, BLOCK=BLOCK))
    assert touch.slot == 0 and touch.bytes == 96 and torch.equal(base, kept)


def test_the_binary_is_the_same():
    """Copies are aligned as the arguments are: nothing is compiled that the script would not have compiled."""
    base = torch.randn(N + 4, device="cuda")
    caches = scaled.device_caches[torch.cuda.current_device()][0]
    for x in (base, base[1:], base[4:]):
        out = torch.zeros(N, device="cuda")
        scaled[(4,)](x, out, 900, 0, 900, BLOCK=BLOCK)
        known = len(caches)
        assert looked(call(scaled, x, out, 900, 0, 900, BLOCK=BLOCK)) == []
        assert len(caches) == known


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda x: call(through_a_table, torch.tensor([x.data_ptr()], device="cuda"), N, BLOCK=1024, grid=(1,)),
         "addresses"),
        (lambda x: call(through_a_number, x, x.data_ptr(), N, BLOCK=1024, grid=(1,)), "addresses"),
        (lambda x: call(locked, torch.zeros(1, dtype=torch.int32, device="cuda"), x, BLOCK=1), "wait"),
        (lambda x: call(in_place, x.cpu().pin_memory(), N, BLOCK=BLOCK), "not in a CUDA"),
        (lambda x: call(in_place, triton.reinterpret(x, tl.float32), N, BLOCK=BLOCK), "another kind"),
    ],
)  # fmt: skip
def test_what_could_be_noticed_is_refused(made, reason):
    x = torch.zeros(N, device="cuda")
    with pytest.raises(Refused, match=reason):
        looked(made(x))
    torch.cuda.synchronize()
    assert not x.any(), "it was not launched"


# -- in a training


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, more):
        out = torch.empty_like(x)
        scaled[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), 0, x.numel() + more, BLOCK=BLOCK)
        return out

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        in_place[(triton.cdiv(grad.numel(), BLOCK),)](grad, grad.numel(), BLOCK=BLOCK)
        return grad * 4, None


def steps(model: Any, optimizer: Any, count: int, more: int) -> None:
    draw = torch.Generator(device="cuda").manual_seed(1)
    for _ in range(count):
        x = torch.randn(50, 20, device="cuda", generator=draw)
        loss = Doubled.apply(model(x), more).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def trained(out: Path | None, count: int = 8, *, more: int = 0, strict: int = 0) -> tuple[torch.Tensor, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 19).cuda()  # 950 numbers come out of it, 3,800 bytes, and torch hands out 4,096
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if out is None:
        steps(model, optimizer, count, more)
        return model.weight.detach().clone(), None
    with brickprof.attach(model, optimizer, out=out, level="deep") as session:
        steps(model, optimizer, count, more)
        torch.cuda.set_sync_debug_mode("error" if strict else "default")
        try:
            steps(model, optimizer, strict, more)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    return model.weight.detach().clone(), brickprof.load(session.folder)


def events(run: Any, kind: str) -> list[dict[str, Any]]:
    return list(run.events[run.events.kind == kind].fields)


def verdict(run: Any) -> ContractResult:
    return Canaries().judge(Story.of(run), registry.library()[Canaries.contract])


@pytest.mark.parametrize("more", [0, 1])
def test_training_is_the_same_to_the_bit(tmp_path, more):
    untouched = triton.runtime.jit.JITFunction.run
    plain, _ = trained(None, more=more)
    watched, run = trained(tmp_path, more=more)
    assert torch.equal(plain, watched)
    told = events(run, "canaries")[-1]
    assert told["kernels"] == {"scaled": 5, "in_place": 5} and told["launches"] == 16, told  # 1, 2, 3, 4 and 8
    assert told["touched"] == (5 if more else 0) and not told["refused"]
    assert not [fields for fields in events(run, "probe_off") if fields["probe"] == "canaries"]
    assert triton.runtime.jit.JITFunction.run is untouched


def test_what_torch_draws_is_the_same(tmp_path):
    trained(None)
    plain = torch.cuda.get_rng_state()
    trained(tmp_path)
    assert torch.equal(plain, torch.cuda.get_rng_state())


def test_one_element_too_many_is_found_with_its_line(tmp_path):
    _, run = trained(tmp_path, more=1)
    (violation,) = verdict(run).violations
    line = inspect.getsourcelines(Doubled)[1] + 4
    assert violation.brick == "scaled" and violation.cause == "buffer-overflow"
    assert f"test_gpu_canaries.py:{line}" in violation.symptom and "4 bytes behind the end of out" in violation.symptom
    found = [each for each in diagnose(run).findings if each.severity is Severity.ERROR]
    assert [each.contract for each in found] == ["C-BUFSIZE-001"] and all(why.evidence for why in found[0].whys)


def test_healthy_kernels_pass(tmp_path):
    _, run = trained(tmp_path)
    judged = verdict(run)
    assert judged.verdict is Verdict.PASS and "10 of 16 launches of 2 Triton kernels" in judged.observed, judged


def test_launches_of_ours_are_not_counted_as_the_scripts(tmp_path):
    _, run = trained(tmp_path)
    told = [{name: (times, site) for name, times, site in fields["kernels"]} for fields in events(run, "launches")]
    assert told
    for kernels in told:
        for name in ("scaled", "in_place"):
            times, site = kernels[name]
            assert times == 1 and site.startswith("test_gpu_canaries.py:"), told


def test_nothing_waits_for_the_device(tmp_path):
    """torch raises where the host would wait: the probe would have failed."""
    _, run = trained(tmp_path, 1, strict=8)
    assert events(run, "canaries")[-1]["checked"] == 10
    assert not [fields for fields in events(run, "probe_off") if fields["probe"] == "canaries"]


def test_a_device_that_sleeps_goes_on_sleeping():
    x, out = pair()
    made = call(scaled, x, out, N, 0, N, BLOCK=BLOCK)
    looked(made)  # kernels are loaded when they are first used, and that waits
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(1_000_000_000)
    tensors = shadows.arguments(made)
    shadows.check(made, tensors)
    laid_out = shadows.guarded(tensors)
    shadows.launch(made, tensors, laid_out.copy())
    changes = laid_out.changes()
    done.record()
    assert not done.query(), "the host was held up until the device was done"
    assert laid_out.touches(changes.tolist()) == []


def test_a_captured_graph_is_left_alone(tmp_path):
    model = torch.nn.Linear(20, 19).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.zeros(N, device="cuda")
    in_place[(4,)](x, N, BLOCK=BLOCK)
    graph = torch.cuda.CUDAGraph()
    with brickprof.attach(model, optimizer, out=tmp_path, level="deep") as session:
        steps(model, optimizer, 2, 0)
        with torch.cuda.graph(graph):
            in_place[(4,)](x, N, BLOCK=BLOCK)
        x.fill_(2.0)
        graph.replay()
        torch.cuda.synchronize()
    told = events(brickprof.load(session.folder), "canaries")[-1]
    assert x[0].item() == 1.0 and any("graph" in reason for reason in told["refused"]), told


def test_runs_of_a_tuner_are_not_looked_at(tmp_path):
    configs = [triton.Config({"BLOCK": size}) for size in (128, 256)]
    tuned = triton.autotune(configs=configs, key=["n"])(in_place)
    x = torch.ones(N, device="cuda")
    heard: list[Call] = []
    assert triton_calls.listen(heard.append)
    try:
        tuned[lambda meta: (triton.cdiv(N, meta["BLOCK"]),)](x, N)
    finally:
        triton_calls.stop()
    assert [each.benchmark for each in heard].count(False) == 1 and len(heard) > 2
    assert heard[-1].site.startswith("test_gpu_canaries.py:")


def test_what_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(shadows, "_MOST_BYTES", 1 << 20)
    with pytest.raises(Refused, match="large"):
        looked(call(in_place, torch.zeros(1 << 20, device="cuda"), N, BLOCK=BLOCK))


def test_a_descriptor_is_refused():
    with pytest.raises(Refused, match="descriptor"):
        looked(call(in_place, SimpleNamespace(block_shape=[4], base=torch.zeros(4, device="cuda")), N, BLOCK=BLOCK))
