"""Waiting for a device that is behind is the step's time, not the cost of looking."""

from __future__ import annotations

import pytest
import torch

from brickprof.capture.backlog import Backlog
from brickprof.capture.readback import Readback
from brickprof.clock import now


def test_what_is_held_up_by_the_device_costs_what_it_takes_otherwise():
    backlog = Backlog()
    for took in (900, 1000, 1000, 1100):
        assert backlog.cost("full", took, behind=False) == took
    assert backlog.cost("full", 90_000, behind=True) == 2000
    assert backlog.quickest("full") == 900


def test_what_nobody_has_seen_unhindered_costs_all_of_it():
    assert Backlog().cost("full", 90_000, behind=True) == 90_000


def test_what_is_the_same_every_time_costs_what_its_quickest_did():
    backlog = Backlog()
    assert backlog.cost("vigil", 1000, behind=True, steady=True) == 1000
    assert backlog.cost("vigil", 90_000, behind=True, steady=True) == 2000


def test_nothing_is_learnt_from_nothing():
    backlog = Backlog()
    assert backlog.cost("facts", 0, behind=False) == 0
    assert backlog.cost("facts", 5_000_000, behind=True) == 5_000_000


def test_what_takes_long_by_itself_costs_all_of_it():
    backlog = Backlog()
    backlog.cost("full", 1000, behind=False)
    assert backlog.cost("full", 90_000, behind=False) == 90_000


def test_each_piece_has_a_measure_of_its_own():
    backlog = Backlog()
    for _ in range(8):
        backlog.cost("guard", 10, behind=False)
    assert backlog.cost("full", 5000, behind=True) == 5000


class Mark:
    def __init__(self) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done


class Lane:
    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.graph = False

    def serves(self, tensor):
        return True

    def recording(self):
        return self.graph

    def stream(self, tensor):
        return 0

    def mark(self, stream):
        self.marks.append(Mark())
        return self.marks[-1]

    def buffer(self, numel, dtype):
        return torch.empty(numel, dtype=dtype)


def test_a_device_is_behind_while_it_has_not_done_what_it_was_given_a_step_ago(monkeypatch):
    from brickprof.capture import readback as module

    monkeypatch.setattr(module, "on_host", lambda tensor: False)
    readback = Readback()
    readback.lane = Lane()
    assert not readback.late(now())
    before = now()
    readback.read(torch.ones(3), lambda host: None)
    assert readback.late(now()) and not readback.late(before)
    readback.lane.marks[0].done = True
    assert not readback.late(now())


def test_a_device_is_not_asked_while_a_graph_is_captured(monkeypatch):
    from brickprof.capture import readback as module

    monkeypatch.setattr(module, "on_host", lambda tensor: False)
    readback = Readback()
    lane = readback.lane = Lane()
    readback.read(torch.ones(3), lambda host: None)
    lane.graph, lane.marks[0].query = True, lambda: pytest.fail("a question to the device")
    readback.poll()
    assert not readback.late(now())
