"""Times on a device: marks that are queued now and asked later."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import pytest
import torch

import brickprof
from brickprof.capture import device_clock
from brickprof.capture.device_clock import DeviceClock
from brickprof.capture.trace import PHASE, Trace
from brickprof.probes import launches


class Device:
    """A stream that reaches each mark some time after it was queued; time is told in ns."""

    def __init__(self) -> None:
        self.at = 0
        self.stopped = False
        self.capturing = False
        self.lane = 7
        self.chosen = 0

    def ready(self) -> bool:
        return not self.capturing

    def current(self) -> int:
        return self.chosen

    def event(self):
        return Event(self)

    def record(self, event, device) -> int:
        if event.on not in (None, device):
            raise RuntimeError(f"Event device {event.on} does not match recording stream's device {device}")
        event.on = device
        event.reached = self.at
        return self.lane

    def work(self, ns: int) -> None:
        self.at += ns


class Event:
    made = 0

    def __init__(self, device: Device) -> None:
        Event.made += 1
        self.device = device
        self.on = None

    def query(self) -> bool:
        assert not self.device.capturing
        return not self.device.stopped

    def elapsed_time(self, later) -> float:
        if later.on != self.on:
            raise RuntimeError("CUDA error: invalid resource handle")
        return (later.reached - self.reached) / 1e6


@pytest.fixture
def device(monkeypatch):
    made = Device()
    monkeypatch.setattr(DeviceClock, "lane", made)
    Event.made = 0
    return made


@pytest.fixture
def written():
    return []


@pytest.fixture
def trace(device, written):
    journal = SimpleNamespace(span=written.append)
    pulse = SimpleNamespace(enter=lambda *_: None, leave=lambda *_: None, beat=lambda *_: None, mark=lambda *_: None)
    return Trace(journal, pulse, DeviceClock(written.append))


def times(written):
    return {row[2]: row[8] for row in written}


def test_bricks_have_the_time_between_their_marks(trace, device, written):
    trace.clock.begin(True)
    outer = trace.open(1, PHASE["forward"])
    device.work(1000)
    inner = trace.open(2, PHASE["forward"])
    device.work(30_000)
    trace.close(inner, write=True)
    device.work(500)
    trace.close(outer, write=True)
    assert written == []
    trace.clock.begin(True)
    assert times(written) == {2: 30_000, 1: 31_500}
    assert {row[9] for row in written} == {0}


def test_the_backward_of_a_block_lasts_until_the_next_one(trace, device, written):
    trace.clock.begin(True)
    trace.mark(1)
    device.work(4000)
    trace.mark(2)
    device.work(6000)
    trace.close_marks(0, write=True)
    trace.clock.begin(False)
    assert times(written) == {1: 4000, 2: 6000}


def test_no_brick_runs_on_the_device_before_it_was_queued(trace, device, written):
    trace.clock.begin(True)
    for brick in (1, 2, 3):
        number = trace.open(brick, PHASE["forward"])
        device.work(10_000_000)
        trace.close(number, write=True)
    trace.clock.begin(False)
    starts = [json.loads(row[10])["device_start_ns"] for row in written]
    assert all(start >= row[6] for start, row in zip(starts, written, strict=True))
    assert [later - one for one, later in itertools.pairwise(starts)] == [10_000_000, 10_000_000]


def test_attributes_stay(trace, device, written):
    trace.clock.begin(True)
    trace.close(trace.open(1, PHASE["user"]), write=True, attributes='{"bytes":4}')
    trace.clock.begin(False)
    assert json.loads(written[0][10])["bytes"] == 4


def test_nobody_waits_and_the_end_writes_without_a_time(trace, device, written):
    device.stopped = True
    trace.clock.begin(True)
    trace.close(trace.open(1, PHASE["forward"]), write=True)
    trace.clock.begin(True)
    trace.close(trace.open(2, PHASE["forward"]), write=True)
    assert written == []
    trace.clock.resolve(last=True)
    assert times(written) == {1: None, 2: None}


def test_no_event_is_asked_while_a_graph_is_captured(trace, device, written):
    trace.clock.begin(True)
    number = trace.open(1, PHASE["forward"])
    device.capturing = True
    trace.close(number, write=True)  # no mark at its end: the host's time is all there is
    trace.clock.begin(True)
    assert times(written) == {1: None} and not trace.clock.running
    device.capturing = False
    trace.clock.begin(False)
    assert trace.clock._pending == []


def test_steps_that_are_not_wanted_have_no_marks(trace, device, written):
    trace.clock.begin(False)
    trace.close(trace.open(1, PHASE["forward"]), write=True)
    assert Event.made == 0 and times(written) == {1: None}


def test_events_are_used_again(trace, device, written):
    for _ in range(10):
        trace.clock.begin(True)
        trace.close(trace.open(1, PHASE["forward"]), write=True)
    assert Event.made <= 6


def test_streams_are_numbered_as_they_come(trace, device, written):
    trace.clock.begin(True)
    trace.close(trace.open(1, PHASE["forward"]), write=True)
    device.lane = 9
    trace.close(trace.open(2, PHASE["forward"]), write=True)
    trace.clock.begin(False)
    assert [row[9] for row in written] == [0, 1]


def test_a_device_far_behind_is_not_asked_for_more(trace, device, written):
    device.stopped = True
    for _ in range(200):
        trace.clock.begin(True)
        trace.close(trace.open(1, PHASE["forward"]), write=True)
    assert Event.made < 64 * 4 and len(written) > 100


# -- several devices


def test_marks_lie_on_the_device_of_the_model_whichever_is_current(trace, device, written):
    trace.clock.home = 1
    trace.clock.begin(True)
    trace.mark(1, device=1)
    device.work(4000)
    trace.close_marks(0, write=True)
    trace.clock.begin(False)
    assert times(written) == {1: 4000}


def test_what_runs_on_another_device_has_the_time_of_the_host_alone(trace, device, written):
    trace.clock.begin(True)
    trace.close(trace.open(1, PHASE["forward"]), write=True, device=0)
    trace.close(trace.open(2, PHASE["forward"]), write=True, device=1)
    trace.mark(3, device=0)
    trace.mark(4, device=1)
    trace.mark(5, device=0)
    trace.close_marks(0, write=True)
    device.chosen = 1
    trace.close(trace.open(6, PHASE["user"], current=True), write=True)
    trace.clock.begin(False)
    assert {brick for brick, time in times(written).items() if time is not None} == {1, 5}
    assert sorted(times(written)) == [1, 2, 3, 4, 5, 6]


def test_a_model_that_moves_takes_its_marks_along(trace, device, written):
    for home in (0, 0, 1, 1, 0):
        trace.clock.begin(True)
        trace.close(trace.open(1, PHASE["forward"]), write=True)
        trace.clock.home = home
        assert (trace.clock.first is None) == (trace.clock._device != home)  # the step is not timed on the wrong one
    trace.clock.begin(False)
    assert len(written) == 5 and all(row[8] is not None for row in written)


def test_a_mark_that_fails_is_raised_at_the_next_step_and_nowhere_else(trace, device, written, monkeypatch):
    def refuse(event, on):
        raise RuntimeError("no such stream")

    trace.clock.begin(True)
    opened = trace.open(1, PHASE["forward"])
    monkeypatch.setattr(device, "record", refuse)
    trace.mark(2)
    trace.close(opened, write=True)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no such stream"):
            trace.clock.begin(True)
        trace.close(trace.open(1, PHASE["forward"]), write=True)
    trace.clock.begin(True)  # by then nobody asks any more
    assert not trace.clock.running and len(written) == 4


def test_times_that_cannot_be_had_leave_the_spans(trace, device, written, monkeypatch):
    def refuse(earlier, later):
        raise RuntimeError("CUDA error: invalid resource handle")

    monkeypatch.setattr(Event, "elapsed_time", refuse)
    trace.clock.begin(True)
    trace.close(trace.open(1, PHASE["forward"]), write=True)
    with pytest.raises(RuntimeError):
        trace.clock.begin(True)
    trace.clock.resolve(last=True)
    assert times(written) == {1: None}


@pytest.mark.parametrize("broken", ["record", "elapsed_time"])
def test_a_training_goes_on_and_its_end_is_told_where_no_mark_can_be_had(tmp_path, device, monkeypatch, broken):
    def refuse(*_):
        raise RuntimeError("CUDA error: invalid resource handle")

    monkeypatch.setattr(device if broken == "record" else Event, broken, refuse)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with brickprof.attach(net, optimizer, out=tmp_path, overhead="100%") as bp:
        for _ in range(12):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).mean().backward()
            optimizer.step()
    run = brickprof.load(bp.folder)
    assert "exit" in set(run.events.kind) and len(run.spans) and run.spans.device_ns.isna().all()
    told = [event.fields["probe"] for event in run.events.itertuples() if event.kind == "probe_off"]
    assert told == ["clock"] * 3


# -- launches of kernels


@pytest.fixture
def probe(trace, written):
    journal = SimpleNamespace(span=written.append, brick=lambda brick: 3)
    return launches.LaunchesProbe(SimpleNamespace(trace=trace, journal=journal, charge=lambda *_: None))


def launched(probe, device, ns):
    ended = probe.launched("theirs", "train.py:7")
    device.work(ns)
    ended()


def test_a_launch_lies_on_the_device_where_it_ran(trace, device, written, probe):
    trace.clock.begin(True)
    block = trace.open(1, PHASE["forward"])
    device.work(10_000_000)
    launched(probe, device, 4_000_000)
    trace.close(block, write=True)
    assert written == []
    trace.clock.begin(False)
    kernel, around = sorted(written, key=lambda row: -row[2])
    told = json.loads(kernel[10])
    assert (kernel[1], kernel[8], kernel[9]) == (around[0], 4_000_000, around[9])
    assert told["device_start_ns"] == json.loads(around[10])["device_start_ns"] + 10_000_000
    assert (told["site"], told["source"]) == ("train.py:7", "triton")


def test_a_launch_makes_no_more_events_than_its_two_marks(trace, device, probe):
    trace.clock.begin(True)
    launched(probe, device, 1)
    assert Event.made == 3


def test_of_launches_no_usual_time_is_learned_and_no_kernel_lies_in_one(trace, device, probe):
    learned = []
    trace.clock._learn = lambda step, whole, times: learned.extend(times)
    trace.kept = []
    trace.clock.begin(True)
    launched(probe, device, 1000)
    trace.close(trace.open(1, PHASE["forward"]), write=True)
    trace.close(trace.open(2, PHASE["step"]), write=True)
    trace.clock.begin(False)
    assert [brick for brick, _, _ in learned] == [1] and [row[2] for row in trace.kept] == [1, 2]


def test_a_storm_of_launches_leaves_room_for_bricks(trace, device, written, probe, monkeypatch):
    monkeypatch.setattr(device_clock, "_MOST_FOR_KERNELS", 5)
    trace.clock.begin(True)
    for _ in range(8):
        launched(probe, device, 1000)
    trace.close(trace.open(1, PHASE["forward"]), write=True)
    trace.clock.begin(False)
    assert [row[8] is None for row in sorted(written)] == [False] * 5 + [True] * 3 + [False]


@pytest.mark.parametrize("captured", ["before", "inside"])
def test_no_event_of_a_launch_is_asked_while_a_graph_is_captured(trace, device, written, probe, captured):
    trace.clock.begin(True)
    device.capturing = captured == "before"
    ended = probe.launched("theirs", "train.py:7")
    device.capturing = True
    ended()
    trace.clock.begin(True)
    assert [row[8] for row in written] == [None]


def test_nobody_waits_for_a_launch_and_the_end_writes_it_without_a_time(trace, device, written, probe):
    device.stopped = True
    trace.clock.begin(True)
    launched(probe, device, 1000)
    trace.clock.begin(False)
    assert written == []
    trace.clock.resolve(last=True)
    assert [row[8] for row in written] == [None]
