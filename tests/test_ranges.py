"""Bricks as NVTX ranges: named alike, nested alike, and only where somebody looks."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import brickprof
from brickprof.bricks import Brick, Kind
from brickprof.capture import copies, ranges
from brickprof.capture.device_clock import DeviceClock
from brickprof.capture.trace import PHASE, Trace
from brickprof.probes import transfers

BRICKS = {Brick(Kind.BLOCK, "", "GPT"): 1, Brick(Kind.BLOCK, "blocks.0", "GPT"): 2, Brick(Kind.STEP, "epoch"): 3}


class Nvtx:
    """What nests, by thread, and what is started; ``story`` has both as they came."""

    def __init__(self) -> None:
        self._nests: dict[int, list[str]] = {}
        self.seen: list[tuple[str, ...]] = []
        self.started: dict[int, str] = {}
        self.story: list[str] = []

    @property
    def open(self) -> list[str]:
        return [name for nest in self._nests.values() for name in nest] + list(self.started.values())

    def push_range(self, name, domain):
        assert domain == "brickprof"
        nest = self._nests.setdefault(threading.get_ident(), [])
        nest.append(name)
        self.seen.append(tuple(nest))
        self.story.append(f"+{name}")

    def pop_range(self, domain):
        self.story.append(f"-{self._nests[threading.get_ident()].pop()}")

    def start_range(self, name, domain):
        assert domain == "brickprof"
        number = len(self.story)
        self.started[number] = name
        self.story.append(f"+{name}")
        return number

    def end_range(self, number):
        self.story.append(f"-{self.started.pop(number)}")  # a second time would be an error


@pytest.fixture
def nvtx():
    return Nvtx()


@pytest.fixture
def trace(nvtx):
    pulse = SimpleNamespace(
        enter=lambda *_: None, leave=lambda *_: None, beat=lambda *_: None, mark=lambda *_: None, depth=0
    )  # fmt: skip
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


def test_the_backward_of_a_block_lasts_until_the_next_mark(trace, nvtx):
    trace.step_id = 7
    trace.mark(2)
    trace.mark(1)
    assert nvtx.open == ["GPT backward"]
    trace.close_marks(0, write=False)
    trace.close_marks(0, write=False)
    assert nvtx.story == ["+blocks.0 backward", "-blocks.0 backward", "+GPT backward", "-GPT backward"]


def test_no_backward_of_a_block_in_a_step_that_is_not_traced(trace, nvtx):
    trace.mark(2)
    assert nvtx.story == []


def test_what_autograd_left_open_on_its_own_thread_spoils_no_nest(trace, nvtx):
    """A recompute that stopped half-way is closed by whoever closes the backward, on another thread."""
    outer = trace.open(3, PHASE["user"])
    backward = trace.open(1, PHASE["backward"])
    elsewhere = threading.Thread(target=trace.open, args=(2, PHASE["recompute"]))
    elsewhere.start(), elsewhere.join()
    trace.close(backward, write=False)
    assert nvtx.open == ["epoch user"]
    trace.close(outer, write=False)
    assert nvtx.open == []


def test_the_end_of_a_step_ends_what_was_started_in_it_once(trace, nvtx):
    trace.step_id = 7
    trace.mark(2)
    lost = trace.ranges.start(1, PHASE["transfer"])
    trace.open(3, PHASE["user"])
    trace.step_over()
    assert nvtx.open == ["epoch user"]
    trace.ranges.end(lost), trace.close_marks(0, write=False), trace.step_over(last=True)
    assert nvtx.open == []


def test_ranges_that_fail_are_nobodys_trouble(trace, nvtx, monkeypatch):
    monkeypatch.setattr(nvtx, "start_range", lambda name, domain: 1 / 0)
    trace.step_id = 7
    trace.mark(2), trace.mark(1), trace.close_marks(0, write=False)
    assert nvtx.open == []


def test_nothing_unless_somebody_looks(monkeypatch):
    for name in ("BRICKPROF_NVTX", "NSYS_PROFILING_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)
    assert ranges.wanted(BRICKS) is None
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    assert ranges.wanted(BRICKS) is not None
    monkeypatch.setenv("BRICKPROF_NVTX", "0")
    assert ranges.wanted(BRICKS) is None


# -- real runs


@pytest.fixture
def watched(nvtx, tmp_path, monkeypatch):
    import nvtx as package

    monkeypatch.setenv("BRICKPROF_NVTX", "1")
    for name in ("push_range", "pop_range", "start_range", "end_range"):
        monkeypatch.setattr(package, name, getattr(nvtx, name))
    return lambda *given: brickprof.attach(*given, out=tmp_path, level="deep")


class Net(torch.nn.Module):
    def __init__(self, body=None):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.head = torch.nn.Linear(4, 1)
        self._through = body or (lambda block, x: block(x))

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(self._through(block, x))
        return self.head(x)


def train(model, optimizer, steps=4, loss=lambda out: out.mean()):
    for _ in range(steps):
        loss(model(torch.ones(2, 4))).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_real_run_has_blocks_forward_and_backward_under_the_names_of_its_spans(watched, nvtx):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(model, optimizer) as session:
        train(model, optimizer)
    assert nvtx.open == []
    assert {("forward",), ("forward", "blocks.0"), ("backward",), ("SGD optimizer",)} <= set(nvtx.seen)
    spans = brickprof.load(session.folder).spans
    behind = spans[(spans.phase == "backward") & (spans.kind == "block") & (spans.step == 3)].sort_values("start_ns")
    names = [f"+{brick} backward" for brick in behind.brick.astype(str)]
    assert {"+blocks.0 backward", "+blocks.1 backward"} <= set(names)
    last = len(nvtx.story) - nvtx.story[::-1].index("+backward")
    told = nvtx.story[last - 1 : nvtx.story.index("-backward", last) + 1]
    assert told[1:-1:2] == names
    for opened, closed in zip(told[1:-1:2], told[2:-1:2], strict=True):  # each is over before the next, and all inside
        assert opened[0] == "+" and closed == f"-{opened[1:]}"


def test_a_backward_that_raises_leaves_nothing_open(watched, nvtx):
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ArithmeticError("on purpose")

    model = Net(lambda block, x: block(Breaks.apply(x)) if x.requires_grad else block(x))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(model, optimizer):
        for _ in range(3):
            with pytest.raises(ArithmeticError):
                train(model, optimizer)
            assert nvtx.started == {} and "+blocks.1 backward" in nvtx.story
            optimizer.step()
    assert nvtx.open == []


def test_what_is_recomputed_closes_too(watched, nvtx):
    model = Net(lambda block, x: checkpoint(block, x, use_reentrant=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(model, optimizer):
        train(model, optimizer)
    assert nvtx.open == [] and {"+blocks.0 recompute", "-blocks.0 recompute"} <= set(nvtx.story)


def test_copies_are_ranges_around_the_call_that_copies(watched, nvtx, monkeypatch):
    """What is of type float64 lies on a device here."""
    place = lambda tensor: "cuda:0" if tensor.dtype is torch.float64 else copies.HOST  # noqa: E731
    monkeypatch.setattr(copies, "place", place)
    monkeypatch.setattr(transfers, "has_device", lambda: True)
    model, there = Net(), torch.ones((), dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(out):
        with brickprof.brick("home", kind="transfer"), pytest.raises(RuntimeError):
            torch.empty(3).copy_(torch.ones(2, dtype=torch.float64))  # raises: sizes differ
        return out.to(there).mean()

    with watched(model, optimizer):
        train(model, optimizer, loss=loss)
    assert nvtx.open == []
    told = [name for name in nvtx.story if "transfer" in name][-8:]
    assert told == [
        "+home transfer", "+D2H transfer", "-D2H transfer", "-home transfer",
        "+H2D transfer", "-H2D transfer", "+D2H transfer", "-D2H transfer",  # there, and its gradient back
    ]  # fmt: skip
