"""What capture does on a real device: times, statistics in every step, kernels of any script; nothing waits for it."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import json
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity
from torch.utils.checkpoint import checkpoint

import brickprof
from brickprof.capture import patrol, sentries, sentry, vigil
from brickprof.capture.budgets import Budgets
from brickprof.capture.fused import Fused
from brickprof.capture.stretch import Stretches
from tests.launching import finished, script
from tests.launching import recorded as recorded_in

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

WIDTH, WIDE = 512, 3072


def model(layers: int = 4, width: int = WIDTH) -> torch.nn.Sequential:
    torch.manual_seed(0)
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width))
        for _ in range(layers)
    ]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(width, 1)).cuda()


def train(net, steps, *, spoil=None, clip=True):
    """An ordinary loop; ``spoil(step, net)`` may damage something."""
    width = net[0][0].in_features
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    draw = torch.Generator(device="cuda").manual_seed(1)
    for step in range(steps):
        x = torch.randn(4096, width, device="cuda", generator=draw)
        loss = (net(x) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if spoil is not None:
            spoil(step, net)
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return optimizer


def warm() -> None:
    """Compiles the kernel, so that a run of seconds has it from its first steps."""
    fused = Fused(lambda kind, fields: None)
    values = [torch.ones(64, device="cuda")]
    deadline = time.monotonic() + 120
    while fused.table("warm", values) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert fused.table("warm", values) is not None


@pytest.fixture(scope="module", autouse=True)
def compiled():
    if torch.cuda.is_available():
        warm()


def recorded(tmp_path, *args, level="standard", overhead="1%", width=WIDTH, **kwargs):
    net = model(width=width)
    with brickprof.attach(net, out=tmp_path, level=level, overhead=overhead) as bp:
        train(net, *args, **kwargs)
        torch.cuda.synchronize()
    return brickprof.load(bp.folder)


def test_blocks_have_a_time_on_the_device(tmp_path):
    run = recorded(tmp_path, 12)
    blocks = run.spans[(run.spans.kind == "block") & run.spans.device_ns.notna()]
    assert {"forward", "backward"} <= set(blocks.phase)
    assert (blocks.device_ns >= 0).all() and blocks.device_ns.median() > 1000
    steps = run.spans[(run.spans.kind == "step") & (run.spans.phase == "step") & run.spans.device_ns.notna()]
    inside = blocks[blocks.step.isin(steps.step)].groupby("step").device_ns.sum()
    assert inside.median() <= 2.2 * steps.device_ns.median()  # a block inside a block counts twice


@pytest.mark.parametrize("clip", [True, False])
def test_the_step_and_the_tensor_of_a_nan_are_exact_in_a_step_that_nobody_looks_at(tmp_path, clip):
    at = 333

    def spoil(step, net):
        if step == at:
            net[2][0].weight.grad[3, 5] = math.nan

    run = recorded(tmp_path, 400, spoil=spoil, clip=clip, width=WIDE, overhead="5%")
    broken = [event for event in run.events.itertuples() if event.kind == "grad" and event.fields.get("broken")]
    first = min(broken, key=lambda event: event.step)
    assert first.step == at
    (named,) = first.fields["nonfinite"]
    assert (named["nan"], named["inf"]) == ((None, None) if clip else (1, 0))  # norms of the clip, or all numbers
    names = {event.fields["id"]: event.fields["name"] for event in run.events.itertuples() if event.kind == "tensor"}
    assert names[named["tensor"]] == "2.0.weight"
    diagnosis = brickprof.diagnose(run)
    assert diagnosis.findings and diagnosis.findings[0].first_step in (at, at + 1)


def test_statistics_of_every_gradient_at_least_every_fourth_step(tmp_path):
    run = recorded(tmp_path, 300, width=WIDE, overhead="5%")
    grads = run.samples[(run.samples.role == "grad") & (run.samples.step >= 64)]
    steps = sorted(set(grads.step))
    assert max(b - a for a, b in itertools.pairwise(steps)) <= 4
    assert grads.groupby("step").tensor.nunique().min() == len(list(model(width=WIDE).parameters()))
    assert grads.l2.notna().all() and (grads.nan == 0).all()
    whole = sorted(set(grads[grads.absmax.notna()].step))
    assert max(b - a for a, b in itertools.pairwise(whole)) <= 4


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("level", ["light", "standard"])
def test_nothing_waits_for_the_device(tmp_path, level, clip):
    """Counted by torch itself: set to raise, it would make a wait of ours a failure of a probe in the journal."""
    net = model()
    with brickprof.attach(net, out=tmp_path, level=level) as bp:
        train(net, 40, clip=clip)
        torch.cuda.set_sync_debug_mode("error")
        try:
            train(net, 200, clip=clip)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    run = brickprof.load(bp.folder)
    off = [event.fields for event in run.events.itertuples() if event.kind == "probe_off"]
    assert off == []


def waits(net, clip, *, begin=300, steps=40):
    """The calls of CUDA's runtime that wait for the device, by name, in each step of a stretch."""
    profile = torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
    counted = contextlib.ExitStack()

    def mark(step, net):
        """Steps are counted from one of these to the next; the profiler's own waits lie before the first, or behind."""
        if step == begin:
            profile.start()
        counted.close()
        if begin <= step < begin + steps:
            counted.enter_context(torch.profiler.record_function("counted"))
        if step == begin + steps:
            profile.stop()
        if step % 10 == 0:
            net[0][0].weight.grad.norm().item()  # as a script does that prints something

    train(net, begin + steps + 1, spoil=mark, clip=clip)
    calls = [event for event in profile.events() if event.device_type == DeviceType.CPU]
    spans = sorted((event.time_range.start, event.time_range.end) for event in calls if event.name == "counted")
    waiting = [event for event in calls if "Synchronize" in event.name or event.name == "cudaMemcpy"]
    return [Counter(event.name for event in waiting if low <= event.time_range.start < high) for low, high in spans]


@pytest.mark.parametrize("clip", [True, False])
def test_calls_that_wait_for_the_device_are_those_of_the_script(tmp_path, clip):
    plain = waits(model(), clip)
    assert len(plain) == 40 and sum(counts.total() for counts in plain) >= 4
    for level in ("light", "standard"):
        net = model()
        with brickprof.attach(net, out=tmp_path / level, level=level):
            assert waits(net, clip) == plain, level


@pytest.mark.parametrize(("level", "steps"), [("light", 1200), ("standard", 1200), ("deep", 60)])
def test_checkpoints_are_byte_identical(tmp_path, level, steps):
    """In 1,200 steps there are all looks of a young run, a window of the profiler, and stretches with a lookout."""

    def state(context):
        net = model()
        with context(net):
            optimizer = train(net, steps)
        file = io.BytesIO()
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
        return file.getvalue(), torch.cuda.get_rng_state(), torch.get_rng_state()

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        plain = state(lambda net: contextlib.nullcontext())
        watched = state(lambda net: brickprof.attach(net, out=tmp_path, level=level))
    finally:
        torch.use_deterministic_algorithms(False)
    assert plain[0] == watched[0]
    assert torch.equal(plain[1], watched[1]) and torch.equal(plain[2], watched[2])


def test_kernels_of_any_script_lie_in_their_blocks(tmp_path):
    run = recorded(tmp_path, 40, level="deep", overhead="50%")
    kernels = run.spans[run.spans.kind == "kernel"]
    assert len(kernels) > 50 and kernels.device_ns.notna().all()
    parents = dict(zip(run.spans.id, run.spans.kind, strict=True))
    inside = [parents.get(parent) for parent in kernels.parent]
    where = {kind: inside.count(kind) for kind in set(inside)}
    names = kernels.brick.value_counts().to_dict()
    assert where.get("block", 0) / len(inside) > 0.5, (where, names)
    windows = [event.fields for event in run.events.itertuples() if event.kind == "window"]
    assert sum(window["written"] for window in windows) >= len(kernels)
    assert all(0 < window["busy_ns"] <= 3 * window["step_ns"] for window in windows)
    assert all("device_start_ns" in json.loads(json.dumps(told)) for told in kernels.attributes.head(20))


def test_what_the_kernel_cannot_read_is_told(tmp_path):
    net = model().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with brickprof.attach(net, out=tmp_path) as bp:
        for _ in range(10):
            net(torch.randn(8, WIDTH, device="cuda", dtype=torch.float64)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    run = brickprof.load(bp.folder)
    (told,) = [event.fields for event in run.events.itertuples() if event.kind == "fallback"]
    assert told["operation"] == "statistics" and "float64" in told["reason"]


class Stack(torch.nn.Module):
    """A small transformer's skeleton: embedding, residual blocks, head."""

    def __init__(self, layers: int = 6, width: int = 1024) -> None:
        super().__init__()
        self.embedding = torch.nn.Linear(width, width)
        self.blocks = torch.nn.ModuleList([Residual(width) for _ in range(layers)])
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, 8192)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(torch.nn.Module):
    spoils = False

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return torch.sqrt(-x.square() - 1.0) + x if self.spoils else x


class Graded(Stack):
    """Its own code has its loss in it."""

    def __init__(self, layers: int = 6, width: int = 1024) -> None:
        super().__init__(layers, width)
        self.register_buffer("count", torch.ones(()))

    def forward(self, x, target):
        loss = torch.nn.functional.cross_entropy(super().forward(x), target)
        return loss / self.count


def stacked(net, steps, *, at=-1, clip=True, compiled=None, peak_from=-1, parts=1, between=lambda step: None):
    """Classifies random rows, in ``parts`` with a backward each; the forward of block 2 breaks in the last of step
    ``at``."""
    run = compiled if compiled is not None else net
    error = run if isinstance(net, Graded) else lambda x, y: torch.nn.functional.cross_entropy(run(x), y)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    draw = torch.Generator(device="cuda").manual_seed(1)
    for step in range(steps):
        net.blocks[2].spoils = False
        between(step)
        if step == peak_from:
            torch.cuda.reset_peak_memory_stats()
        x = torch.randn(4096, net.norm.normalized_shape[0], device="cuda", generator=draw)
        target = torch.randint(0, 8192, (4096,), device="cuda", generator=draw)
        optimizer.zero_grad()
        for part in range(parts):
            net.blocks[2].spoils = step == at and part == parts - 1
            loss = error(x.chunk(parts)[part], target.chunk(parts)[part])
            (loss / parts).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def ready_to_count() -> None:
    """Compiles the kernel of the lookout, so that a run of seconds has it from its first steps."""
    from brickprof.capture.lookout import Counts

    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()  # where something was compiled, by another test, nobody looks out
    counts, gate = Counts(), torch.ones((), device="cuda")
    deadline = time.monotonic() + 120
    while counts(gate, [gate]) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    told = counts(torch.full((), math.nan, device="cuda"), [torch.tensor([1.0, math.nan, math.inf], device="cuda")])
    assert told is not None and told.tolist() == [[1, 1]]


def steady(monkeypatch) -> None:
    """Whoever else is on the card makes no step be looked at, nor is it too dear to look out, however busy the host.
    There are no stretches of long steps, though, such as those of a large model where others are on the card."""
    monkeypatch.setattr(Budgets, "learn", lambda *_: None)
    monkeypatch.setattr(sentries, "_SHARE", 1e3)


@pytest.mark.parametrize(("clip", "parts"), [(True, 1), (False, 1), (True, 2), (False, 3)])
@pytest.mark.parametrize("at", [327, 333])
def test_the_step_and_the_block_of_a_nan_are_exact_in_a_step_that_nobody_looks_at(
    tmp_path, monkeypatch, at, clip, parts
):
    ready_to_count()
    steady(monkeypatch)
    passing, count = [], sentry.Sentry._count
    monkeypatch.setattr(sentry.Sentry, "_count", lambda *given: passing.append(given[-1]) or count(*given))
    net = Stack(width=256).cuda()
    with brickprof.attach(net, out=tmp_path) as bp:
        stacked(net, 400, at=at, clip=clip, parts=parts)
        torch.cuda.synchronize()
    run = brickprof.load(bp.folder)
    assert len(passing) > 100 * parts  # in stretches, at that
    assert at not in {event.step for event in run.events.itertuples() if event.kind == "sampled"}
    told = [event for event in run.events.itertuples() if event.kind == "activation"]
    rows = len(torch.empty(4096).chunk(parts)[-1])
    assert told[0].step == at and told[0].fields["nan"] == rows * 256
    assert told[0].fields["inputs_finite"] is True and told[0].fields["micro"] == parts - 1
    finding = brickprof.diagnose(run).findings[0]
    assert (finding.contract, finding.first_step, finding.brick) == ("C-TRAINSTABLE-001", at, "blocks.2")


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("at", [327, 333])
def test_the_block_of_a_nan_is_exact_where_there_are_no_stretches(tmp_path, monkeypatch, at, parts):
    ready_to_count()
    steady(monkeypatch)
    looks, differentiates = [], patrol.Patrol.differentiates
    monkeypatch.setattr(patrol.Patrol, "differentiates", lambda *given: looks.append(1) or differentiates(*given))
    net = Stack(width=256).cuda()
    with brickprof.attach(net, out=tmp_path) as bp:
        bp._session.world_size = 2
        stacked(net, 400, at=at, parts=parts)
        torch.cuda.synchronize()
    run = brickprof.load(bp.folder)
    assert len(looks) > 100 * parts
    told = [event for event in run.events.itertuples() if event.kind == "activation"]
    first = min(told, key=lambda event: event.step)
    assert first.step == at and first.fields["nan"] == 4096 * 256 // parts and first.fields["micro"] == parts - 1
    finding = brickprof.diagnose(run).findings[0]
    assert (finding.contract, finding.first_step, finding.brick) == ("C-TRAINSTABLE-001", at, "blocks.2")


RANKS = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tests.test_gpu_capture import Stack

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
net = Stack(layers=4, width=128).cuda()
model = DistributedDataParallel(net)
torch.manual_seed(1 + rank)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
for step in range(400):
    net.blocks[2].spoils = rank == 1 and step == 333
    x, target = torch.randn(512, 128, device="cuda"), torch.randint(0, 8192, (512,), device="cuda")
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), target).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
dist.destroy_process_group()
"""


def test_of_two_ranks_the_one_is_told_whose_block_has_put_out_a_nan(tmp_path):
    """Both on this card."""
    script(tmp_path, RANKS)
    ready_to_count()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    done = finished(
        [*command, "-m", "brickprof", "run", "--overhead", "5%", "t.py"], tmp_path, timeout=200, PYTHONPATH=paths
    )
    assert done.returncode == 0, done.stderr
    run = brickprof.load(recorded_in(tmp_path))
    told = [event for event in run.events.itertuples() if event.kind == "activation"]
    first = min(told, key=lambda event: event.step)
    of = run.bricks.path[(run.bricks.id == first.fields["brick"]) & (run.bricks["rank"] == first.rank)].item()
    assert (first.step, first.rank, of) == (333, 1, "blocks.2")
    finding = brickprof.diagnose(run).findings[0]
    assert (finding.first_step, finding.brick) == (333, "blocks.2")


@pytest.mark.parametrize("heard", [True, False])
def test_outputs_are_counted_in_any_type_on_the_device(heard):
    from brickprof.kernels.nonfinite import SLOTS, NonFinite, reference, size_of

    tensors = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for size in (1, 16, 1023, 1024, 100_000, 3_000_001):
            value = torch.ones(size, device="cuda", dtype=dtype)
            value[size // 2 :: 7], value[size // 3 :: 1111] = math.nan, math.inf
            tensors.append(value)
    assert len(tensors) > SLOTS
    for gate in (math.nan, math.inf, 1.0):
        asked = torch.full((), gate, device="cuda")
        expected = reference(asked, tensors)
        assert torch.equal(NonFinite()(asked, tensors), expected)
        adding, out = NonFinite(heard=heard), torch.zeros((60, 2), dtype=torch.int64, device="cuda")
        assert adding.settled(0, len(tensors)) is None
        for some, at in ((tensors, 2), (tensors[::-1], 30)):  # what was bound is told other places
            adding.add(asked, [number for each in some for number in (each.data_ptr(), size_of(each))], out, at)
        backwards = [number for each in tensors[::-1] for number in (each.data_ptr(), size_of(each))]
        adding.settled(0, len(tensors))(asked.data_ptr(), out[30:].data_ptr(), *backwards)
        assert torch.equal(out[2:20], expected) and torch.equal(out[30:48], 2 * expected.flip(0))
        assert not out[:2].any() and not out[20:30].any() and not out[48:].any()
        with pytest.raises(ValueError, match="18 rows from 50 on"):
            adding.add(asked, [0, 0] * 18, out, 50)


def test_behind_a_finite_loss_the_count_takes_the_device_microseconds():
    from brickprof.kernels.nonfinite import NonFinite

    counted, gate = NonFinite(), torch.ones((), device="cuda")
    tensors = [torch.ones(64 * 2**20, device="cuda") for _ in range(16)]  # 4 GiB: a millisecond to read
    counted(gate, tensors)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    for _ in range(50):
        counted(gate, tensors)
    after.record()
    torch.cuda.synchronize()
    assert before.elapsed_time(after) / 50 < 0.2


def test_the_peak_of_the_memory_is_the_same(tmp_path):
    ready_to_count()
    peaks = []
    for context in (
        lambda net: contextlib.nullcontext(),
        lambda net: brickprof.attach(net, out=tmp_path, overhead="5%"),
    ):
        gc.collect()
        net = Stack().cuda()
        with context(net):
            stacked(net, 180, peak_from=80)
        peaks.append(torch.cuda.max_memory_allocated())
        del net
    assert peaks[1] <= 1.01 * peaks[0], peaks


@pytest.mark.parametrize("parts", [1, 2])
def test_the_lookout_waits_for_nothing(tmp_path, parts):
    ready_to_count()
    net = Stack().cuda()
    with brickprof.attach(net, out=tmp_path, overhead="25%") as bp:
        stacked(net, 40, parts=parts)
        torch.cuda.set_sync_debug_mode("error")
        try:
            stacked(net, 100, parts=parts)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    run = brickprof.load(bp.folder)
    (end,) = [event.fields for event in run.events.itertuples() if event.kind == "exit"]
    assert end["looked_out"] > 70 * parts
    assert [event.fields for event in run.events.itertuples() if event.kind == "probe_off"] == []


def test_a_compiled_model_gets_no_hook_and_is_compiled_once(tmp_path):
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    net = Stack(layers=3, width=256).cuda()
    with brickprof.attach(net, out=tmp_path) as bp:
        compiled = torch.compile(net)
        stacked(net, 30, compiled=compiled)
        frames = torch._dynamo.utils.counters["frames"]["total"]
        stacked(net, 60, compiled=compiled)
        assert torch._dynamo.utils.counters["frames"]["total"] == frames
        assert bp._session.lookout.hooked == 0
        assert not any(module._forward_hooks for block in net.blocks for module in block.modules())
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.fixture
def anew(monkeypatch):
    import torch._dynamo

    from brickprof.capture import surroundings

    monkeypatch.setattr(surroundings._Saved, "by_others", False)  # other tests checkpoint
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def compiled_as(net, parts):
    if parts == "whole":
        return torch.compile(net)
    for block in net.blocks:
        block.compile()
    return net


@pytest.mark.parametrize("parts", ["whole", "blocks"])
@pytest.mark.parametrize("at", [327, 333])
def test_the_block_of_a_nan_in_compiled_code_is_exact_in_a_step_that_nobody_looks_at(
    tmp_path, monkeypatch, anew, stretched, parts, at
):
    ready_to_count()
    steady(monkeypatch)
    net = Stack(width=256).cuda()

    def breaks(step):
        if step == at:
            with torch.no_grad():
                net.blocks[2].up.weight.mul_(1e39)

    with brickprof.attach(net, out=tmp_path) as bp:
        stacked(net, 400, compiled=compiled_as(net, parts), between=breaks)
    run = brickprof.load(bp.folder)
    events = list(run.events.itertuples())
    first = next(event for event in events if event.kind == "activation")
    (path,) = run.bricks.path[run.bricks.id == first.fields["brick"]]
    (end,) = [event.fields for event in events if event.kind == "exit"]
    assert (first.step, path, first.fields["inside"]) == (at, "blocks.2", True)
    assert sum(stretched) > 100 and end["looked_out"] > 100
    assert [event.fields for event in events if event.kind == "probe_off"] == []


@pytest.mark.parametrize("at", [327, 333])
def test_a_loss_that_breaks_inside_compiled_code_is_the_models(tmp_path, monkeypatch, anew, stretched, at):
    ready_to_count()
    steady(monkeypatch)
    net = Graded(width=256).cuda()

    def breaks(step):
        if step == at:
            net.count.zero_()

    with brickprof.attach(net, out=tmp_path) as bp:
        stacked(net, 400, compiled=torch.compile(net), between=breaks)
    run = brickprof.load(bp.folder)
    first = next(event for event in run.events.itertuples() if event.kind == "activation")
    (path,) = run.bricks.path[run.bricks.id == first.fields["brick"]]
    line = Graded.forward.__code__.co_firstlineno + 1
    assert (first.step, path, first.fields["numel"]) == (at, "", 1)
    lines = [f"nll_loss in test_gpu_capture.py:{line}", f"div in test_gpu_capture.py:{line + 1}"]
    assert first.fields["operations"] == lines  # the number of targets is not looked at
    assert sum(stretched) > 100


@pytest.mark.parametrize("parts", ["whole", "blocks"])
def test_a_look_into_compiled_code_waits_for_nothing(tmp_path, anew, parts):
    ready_to_count()
    net = Stack().cuda()
    with brickprof.attach(net, out=tmp_path, overhead="25%") as bp:
        compiled = compiled_as(net, parts)
        stacked(net, 40, compiled=compiled)
        torch.cuda.set_sync_debug_mode("error")
        try:
            stacked(net, 100, compiled=compiled)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    run = brickprof.load(bp.folder)
    (end,) = [event.fields for event in run.events.itertuples() if event.kind == "exit"]
    assert end["looked_out"] > 60
    assert [event.fields for event in run.events.itertuples() if event.kind == "probe_off"] == []


def fed(net, steps, *, between=lambda step: None, behind=lambda step: None, mode=None, clip=True):
    """A loop with a loader and a scheduler; the losses as the script had them. ``behind`` comes after the backward."""

    def error(x):
        return (net(x) - x.mean(1, keepdim=True)).square().mean()

    if mode is not None:
        error = torch.compile(error, mode=mode)
    width = net[0][0].in_features
    torch.manual_seed(2)
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64 * 16, width)), batch_size=64)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    losses = []
    for step, (x,) in zip(range(steps), itertools.chain.from_iterable(itertools.repeat(batches)), strict=False):
        x = x.cuda(non_blocking=True)
        between(step)
        loss = error(x)
        optimizer.zero_grad()
        loss.backward()
        behind(step)
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach().clone())
    torch.cuda.set_sync_debug_mode("default")
    return [loss.item() for loss in losses]


@pytest.fixture
def stretched(monkeypatch):
    """How long each stretch was of steps that were only noted."""
    lengths, over = [], Stretches.over
    monkeypatch.setattr(
        Stretches, "over", lambda self, number, steps, ns: lengths.append(steps.begun) or over(self, number, steps, ns)
    )
    return lengths


def no_lookout(bp):
    """As where the model is compiled: nobody looks at the outputs of every step."""
    if bp._session.lookout is not None:
        bp._session.lookout.blind()


def told(folder):
    losses = [event for event in brickprof.load(folder).events.itertuples() if event.kind == "loss"]
    return {event.step: event.fields["value"] for event in losses}


@pytest.mark.parametrize("level", ["light", "standard"])
def test_losses_that_are_only_noted_are_those_of_the_script(tmp_path, stretched, level):
    net = model(width=64)
    with brickprof.attach(net, out=tmp_path, level=level, overhead="0.01%") as bp:
        no_lookout(bp)
        losses = fed(net, 600)
    assert sum(stretched) > 200 and told(bp.folder) == dict(enumerate(losses))
    alone = model(width=64)
    assert fed(alone, 600) == losses
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), net.parameters(), strict=True))


@pytest.mark.parametrize("clip", [True, False])
def test_tables_that_are_sent_for_in_passing_are_of_the_gradients_of_their_step(tmp_path, stretched, monkeypatch, clip):
    """While torch refuses every wait for the device."""
    monkeypatch.setattr(vigil, "_SHARE_BESIDE_NORMS", 1e9)  # whatever it costs
    monkeypatch.setitem(vigil._SHARE, "standard", 1e9)
    came, send = [], vigil.InPassing.__call__
    monkeypatch.setattr(vigil.InPassing, "__call__", lambda self, of: came.append(send(self, of)) or came[-1])
    net, seen = model(width=64), {}

    def behind(step):
        if step == 400:
            torch.cuda.set_sync_debug_mode("error")
        if step >= 400 and step % 4 == 0:
            grads = [parameter.grad for parameter in net.parameters()]
            seen[step] = torch.stack([torch.stack([each.norm(), each.abs().max(), each.mean()]) for each in grads])

    try:
        with brickprof.attach(net, out=tmp_path, overhead="0.01%") as bp:
            no_lookout(bp)
            fed(net, 600, behind=behind, clip=clip)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    run = brickprof.load(bp.folder)
    assert max(stretched) > 16 and len([page for page in came if page is not None]) > 60
    assert [event.fields for event in run.events.itertuples() if event.kind == "probe_off"] == []
    rows = run.samples[run.samples.role == "grad"].set_index(["step", "tensor"])
    names = [name for name, _ in net.named_parameters()]
    for step, numbers in seen.items():
        if step > 590:
            continue
        for name, (l2, absmax, mean) in zip(names, numbers.tolist(), strict=True):
            row = rows.loc[step, name]
            assert row.l2 == pytest.approx(l2, rel=1e-4) and row.absmax == pytest.approx(absmax, rel=1e-6)
            assert row["mean"] == pytest.approx(mean, rel=1e-3, abs=1e-9)


class Again(torch.nn.Module):
    """A block that is computed anew in the backward, by a backward of its own inside it."""

    def __init__(self, block) -> None:
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x.requires_grad_(), use_reentrant=True)


def test_a_backward_inside_another_is_no_step_of_its_own(tmp_path, stretched):
    def made():
        net = model(width=64)
        net[0] = torch.nn.Sequential(net[0][0], Again(net[0][1:]))
        return net

    net = made()
    with brickprof.attach(net, out=tmp_path, level="light", overhead="0.01%") as bp:
        losses = fed(net, 600)
    assert sum(stretched) > 200 and told(bp.folder) == dict(enumerate(losses))
    assert fed(made(), 600) == losses


def test_a_graph_that_is_captured_in_between_has_nothing_of_ours(tmp_path, stretched):
    source, graphs = torch.ones(8, device="cuda"), []

    def capture(step):
        if step in (311, 450):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                doubled = source * 2
            graphs.append((graph, doubled))

    net = model(width=64)
    with brickprof.attach(net, out=tmp_path, overhead="0.01%") as bp:
        no_lookout(bp)
        losses = fed(net, 600, between=capture)
    assert sum(stretched) > 200 and told(bp.folder) == dict(enumerate(losses))
    for graph, doubled in graphs:
        source.fill_(3.0)
        graph.replay()
        assert doubled.tolist() == [6.0] * 8


def test_losses_that_a_replayed_graph_writes_are_not_held(tmp_path, stretched):
    import torch._dynamo

    torch._dynamo.reset()
    net = model(width=64)
    with brickprof.attach(net, out=tmp_path, overhead="0.01%") as bp:
        losses = fed(net, 300, mode="reduce-overhead")
    found = told(bp.folder)
    assert len(found) > 290 and all(losses[step] == value for step, value in found.items())
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
