"""Times on a device: marks that are queued now and asked later."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import pytest

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
        self.current = 7

    def ready(self) -> bool:
        return not self.capturing

    def event(self):
        return Event(self)

    def stream(self) -> int:
        return self.current

    def work(self, ns: int) -> None:
        self.at += ns


class Event:
    made = 0

    def __init__(self, device: Device) -> None:
        Event.made += 1
        self.device = device

    def record(self) -> None:
        self.reached = self.device.at

    def query(self) -> bool:
        assert not self.device.capturing
        return not self.device.stopped

    def elapsed_time(self, later) -> float:
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
    device.current = 9
    trace.close(trace.open(2, PHASE["forward"]), write=True)
    trace.clock.begin(False)
    assert [row[9] for row in written] == [0, 1]


def test_a_device_far_behind_is_not_asked_for_more(trace, device, written):
    device.stopped = True
    for _ in range(200):
        trace.clock.begin(True)
        trace.close(trace.open(1, PHASE["forward"]), write=True)
    assert Event.made < 64 * 4 and len(written) > 100


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
