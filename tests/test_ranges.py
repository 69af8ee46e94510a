"""Bricks as NVTX ranges: named alike, nested alike, and only where somebody looks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from brickprof.bricks import Brick, Kind
from brickprof.capture import ranges
from brickprof.capture.device_clock import DeviceClock
from brickprof.capture.trace import PHASE, Trace

BRICKS = {Brick(Kind.BLOCK, "", "GPT"): 1, Brick(Kind.BLOCK, "blocks.0", "GPT"): 2, Brick(Kind.STEP, "epoch"): 3}


class Nvtx:
    def __init__(self) -> None:
        self.open: list[str] = []
        self.seen: list[tuple[str, ...]] = []

    def push_range(self, name, domain):
        assert domain == "brickprof"
        self.open.append(name)
        self.seen.append(tuple(self.open))

    def pop_range(self, domain):
        self.open.pop()


@pytest.fixture
def nvtx():
    return Nvtx()


@pytest.fixture
def trace(nvtx):
    pulse = SimpleNamespace(enter=lambda *_: None, leave=lambda *_: None, beat=lambda *_: None, depth=0)
    made = Trace(SimpleNamespace(span=lambda row: None), pulse, DeviceClock(lambda row: None))
    made.ranges = ranges.Ranges(BRICKS, nvtx)
    return made


def test_names_and_nesting_are_those_of_the_bricks(trace, nvtx):
    outer = trace.open(1, PHASE["forward"])
    trace.close(trace.open(2, PHASE["forward"]), write=False)
    trace.close(outer, write=True)
    assert nvtx.seen == [("forward",), ("forward", "blocks.0")] and nvtx.open == []


def test_names_carry_their_model_once_there_are_two(trace, nvtx):
    trace.close(trace.open(2, PHASE["backward"]), write=False)
    BRICKS[Brick(Kind.BLOCK, "blocks.0", "Critic")] = 4
    try:
        trace.close(trace.open(4, PHASE["forward"]), write=False)
        trace.close(trace.open(2, PHASE["backward"]), write=False)
        trace.close(trace.open(1, PHASE["forward"]), write=False)
    finally:
        BRICKS.pop(Brick(Kind.BLOCK, "blocks.0", "Critic"))
    assert nvtx.seen == [("blocks.0 backward",), ("Critic.blocks.0",), ("GPT.blocks.0 backward",), ("GPT",)]


def test_what_never_closed_is_closed_with_what_it_was_in(trace, nvtx):
    outer = trace.open(1, PHASE["forward"])
    trace.open(2, PHASE["forward"])
    trace.close(outer, write=False)
    assert nvtx.open == []


def test_a_new_step_keeps_the_users_own_bricks_alone(trace, nvtx):
    trace.open(3, PHASE["user"])
    trace.open(1, PHASE["forward"])
    trace.reset()
    assert nvtx.open == ["epoch user"]


def test_nothing_unless_somebody_looks(monkeypatch):
    for name in ("BRICKPROF_NVTX", "NSYS_PROFILING_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)
    assert ranges.wanted(BRICKS) is None
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    assert ranges.wanted(BRICKS) is not None
    monkeypatch.setenv("BRICKPROF_NVTX", "0")
    assert ranges.wanted(BRICKS) is None


def test_a_real_run_has_them(tmp_path, monkeypatch):
    import nvtx as package
    import torch

    import brickprof

    pushed: list[str] = []
    monkeypatch.setenv("BRICKPROF_NVTX", "1")
    monkeypatch.setattr(package, "push_range", lambda name, domain: pushed.append(name))
    monkeypatch.setattr(package, "pop_range", lambda domain: None)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with brickprof.attach(model, optimizer, out=tmp_path):
        for _ in range(3):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert {"forward", "0", "backward", "SGD optimizer"} <= set(pushed)
