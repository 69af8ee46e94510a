"""What capture does on a real device: times, statistics in every step, kernels of any script; nothing waits for it."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time

import pytest
import torch

import brickprof
from brickprof.capture.fused import Fused

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
    assert (named["nan"], named["inf"]) == (1, 0)
    diagnosis = brickprof.diagnose(run)
    assert diagnosis.findings and diagnosis.findings[0].first_step in (at, at + 1)


def test_statistics_of_every_gradient_at_least_every_fourth_step(tmp_path):
    run = recorded(tmp_path, 300, width=WIDE, overhead="5%")
    grads = run.samples[(run.samples.role == "grad") & (run.samples.step >= 64)]
    steps = sorted(set(grads.step))
    assert max(b - a for a, b in itertools.pairwise(steps)) <= 4
    assert grads.groupby("step").tensor.nunique().min() == len(list(model(width=WIDE).parameters()))
    assert grads.l2.notna().all() and (grads.nan == 0).all()


def test_nothing_waits_for_the_device(tmp_path):
    """Counted by torch itself: set to raise, it would make a wait of ours a failure of a probe in the journal."""
    net = model()
    with brickprof.attach(net, out=tmp_path, level="standard") as bp:
        train(net, 40)
        torch.cuda.set_sync_debug_mode("error")
        try:
            train(net, 200, clip=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    run = brickprof.load(bp.folder)
    off = [event.fields for event in run.events.itertuples() if event.kind == "probe_off"]
    assert off == []


@pytest.mark.parametrize("level", ["light", "standard", "deep"])
def test_checkpoints_are_byte_identical(tmp_path, level):
    def state(context):
        net = model()
        with context(net):
            optimizer = train(net, 60)
        held = [*net.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]
        return [each.cpu() for each in held], torch.cuda.get_rng_state(), torch.get_rng_state()

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        plain = state(lambda net: contextlib.nullcontext())
        watched = state(lambda net: brickprof.attach(net, out=tmp_path, level=level))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], watched[0], strict=True))
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
