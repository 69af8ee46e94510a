"""Kernels of any script, from the events of a profiler that is played here."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from brickprof.bricks import Kind
from brickprof.capture import surroundings
from brickprof.capture.taps import kineto
from brickprof.capture.taps.kineto import Ran
from brickprof.capture.trace import PHASE
from brickprof.probes import windows


class Event:
    def __init__(self, name, start, length, correlation, *, cpu=False, stream=7, size=0, note=False):
        import torch

        kinds = torch._C._autograd.DeviceType
        self.name, self.start_ns, self.duration_ns = (lambda: name), (lambda: start), (lambda: length)
        self.correlation_id, self.device_type = (lambda: correlation), (lambda: kinds.CPU if cpu else kinds.CUDA)
        self.device_resource_id, self.nbytes, self.is_user_annotation = (lambda: stream), (lambda: size), (lambda: note)


EVENTS = [
    Event("cudaLaunchKernel", 100, 5, 1, cpu=True),
    Event("cudaMemcpyAsync", 300, 5, 2, cpu=True),
    Event("cudaStreamIsCapturing", 90, 1, 1, cpu=True),
    Event("Memcpy HtoD (Pinned -> Device)", 900, 40, 2, size=4096),
    Event("gemm", 500, 200, 1),
    Event("my own range", 400, 900, 9, note=True),
    Event("late", 990, 10, 3),
]


def test_what_ran_has_the_time_of_the_call_that_asked_for_it():
    gemm, copy, late = kineto.found(EVENTS, shift=1000)
    assert gemm == Ran("gemm", 1100, 1500, 200, 7, 0)
    assert (copy.launched_ns, copy.bytes) == (1300, 4096)
    assert late.launched_ns == late.start_ns  # nobody was seen to ask for it


def test_a_moment_lies_in_the_innermost_span():
    places = windows.Places([(0, 100, 1, 5), (10, 50, 2, 6), (20, 30, 3, 7), (60, 90, 4, 8)])
    assert [places.around(at, default=(9, 9))[0] for at in (5, 15, 25, 40, 55, 70, 100)] == [1, 2, 3, 2, 1, 4, 9]


@pytest.mark.parametrize(
    ("spans", "busy"), [([(0, 10)], 10), ([(0, 10), (5, 10)], 15), ([(0, 30), (5, 10), (50, 5)], 35), ([], 0)]
)
def test_streams_that_work_side_by_side_count_once(spans, busy):
    assert windows.busy([Ran("k", 0, start, length, 0, 0) for start, length in spans]) == busy


def test_kernels_and_copies_become_spans_in_their_blocks():
    rows, facts, bricks = [], [], []

    def number(brick):
        bricks.append(brick)
        return len(bricks)

    session = SimpleNamespace(
        journal=SimpleNamespace(span=rows.append, brick=number),
        trace=SimpleNamespace(new_id=lambda: 50, kept=None),
        fact=lambda kind, fields, **_: facts.append((kind, fields)),
    )
    probe = windows.WindowsProbe(session)
    probe._step = 12
    whole = (1, 0, 1, PHASE["step"], 12, 0, 0, 1000, None, None, None)
    block = (2, 1, 2, PHASE["forward"], 12, 0, 50, 200, None, None, None)
    probe._spans = [block, whole]
    probe._write([*kineto.found(EVENTS[:-1]), Ran("of the next step", 2000, 2100, 5, 7, 0)])
    kernel, copy = rows
    assert (kernel[1], kernel[3], kernel[8]) == (2, PHASE["forward"], 200)
    assert (copy[1], copy[3], json.loads(copy[10])["bytes"]) == (1, PHASE["user"], 4096)
    assert [brick.kind for brick in bricks] == [Kind.KERNEL, Kind.TRANSFER] and bricks[1].path == "H2D"
    ((kind, told),) = facts
    assert kind == "window" and (told["kernels"], told["busy_ns"], told["step_ns"]) == (2, 240, 1000)


def test_what_brickprof_launched_is_left_out():
    rows, facts = [], []
    session = SimpleNamespace(
        journal=SimpleNamespace(span=rows.append, brick=lambda _: 1),
        trace=SimpleNamespace(new_id=lambda: 50, kept=None),
        fact=lambda kind, fields, **_: facts.append(fields),
    )
    probe = windows.WindowsProbe(session)
    probe._spans = [(1, 0, 1, PHASE["step"], 12, 0, 0, 1000, None, None, None)]
    probe._looks = [(100, 200), *((at, at + 5) for at in range(110, 180, 10)), (400, 500)]
    probe._write([Ran("k", at, at + 50, 5, 7, 0) for at in (99, 100, 148, 199, 200, 450, 600)])
    assert [row[6] for row in rows] == [99, 200, 600]
    assert (facts[0]["kernels"], facts[0]["left_out"], facts[0]["busy_ns"]) == (3, 4, 15)


@pytest.mark.parametrize(
    ("level", "step", "spent", "wanted"),
    [("deep", 1, 0.0, False), ("deep", 3, 0.0, True), ("deep", 9, 0.5, False), ("deep", 9, 0.0001, True),
     ("standard", 19, 0.0, False), ("standard", 30, 0.0, True), ("standard", 30, 0.2, False),
     ("standard", 30, 0.05, True), ("deep", 40, 9, False)],
)  # fmt: skip
def test_a_window_is_opened_once_the_step_is_settled_and_it_fits_the_budget(monkeypatch, level, step, spent, wanted):
    cadence = SimpleNamespace(planned=range(0), budget=0.01)
    session = SimpleNamespace(cadence=cadence, settings=SimpleNamespace(level=level), on=SimpleNamespace(spans=True))
    monkeypatch.setattr(windows.torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(windows, "hands_off", lambda: False)
    monkeypatch.setattr(windows, "lets_go", lambda: True)
    probe = windows.WindowsProbe(session)
    probe._spent, probe._began = spent, probe._began - (10 if level == "deep" else 160 if spent else 16)
    probe._cost = 0.1 if level == "deep" or spent else probe._cost
    assert probe._wanted(step) is wanted


def started(monkeypatch, cuda, given=None, level="standard", *, graphs=False):
    """A probe for whose first window it is time, in a process that has that CUDA and that environment."""
    facts = []
    cadence = SimpleNamespace(planned=range(50, 51), budget=0.01)
    session = SimpleNamespace(
        cadence=cadence, settings=SimpleNamespace(level=level), on=SimpleNamespace(spans=True),
        fact=lambda kind, fields, **_: facts.append((kind, fields)),
    )  # fmt: skip
    environment(monkeypatch, cuda, given, graphs=graphs)
    monkeypatch.setattr(windows.torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(windows, "hands_off", lambda: False)
    probe = windows.WindowsProbe(session)
    probe._began -= 1000
    return probe, facts


def environment(monkeypatch, cuda, given, *, graphs=False):
    monkeypatch.setenv("TEARDOWN_CUPTI", given or "")
    if given is None:
        monkeypatch.delenv("TEARDOWN_CUPTI")
    monkeypatch.setattr(kineto.torch.version, "cuda", cuda)
    monkeypatch.setattr(kineto, "graphs", lambda: graphs)


@pytest.mark.parametrize(
    ("cuda", "given", "graphs", "wanted"),
    [("13.0", None, False, True), ("12.6", None, False, True), ("12.4", None, False, False),
     ("13.0", "0", False, False),
     ("12.4", "1", False, True), (None, None, False, True), ("13.0", None, True, False), ("13.0", "1", True, False)],
)  # fmt: skip
def test_no_window_whose_traces_every_launch_would_bear(monkeypatch, cuda, given, graphs, wanted):
    probe, facts = started(monkeypatch, cuda, given, graphs=graphs)
    assert [probe._wanted(step) for step in (30, 31)] == [wanted] * 2
    assert probe._wanted(50)  # somebody asked for it
    assert [(kind, fields["operation"]) for kind, fields in facts] == [("fallback", "windows")] * (not wanted)
    assert started(monkeypatch, cuda, given, "deep", graphs=graphs)[0]._wanted(30)


class Profiler:
    """Plays torch's: what it finds in the environment when it begins and when it ends."""

    def __init__(self, monkeypatch) -> None:
        self.told = []
        monkeypatch.setattr(kineto.torch._C._autograd, "_profiler_enabled", lambda: False)
        monkeypatch.setattr(kineto.torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(kineto.profiler, "profile", lambda **_: self)
        monkeypatch.setattr(kineto.torch._C._autograd, "_disable_profiler", self.end)

    def _prepare_trace(self):
        self.told.append(os.environ.get("TEARDOWN_CUPTI"))

    def _start_trace(self):
        pass

    def end(self):
        self.told.append(os.environ.get("TEARDOWN_CUPTI"))
        return SimpleNamespace(events=list)


@pytest.mark.parametrize(
    ("leaves", "cuda", "given", "graphs", "told"),
    [(True, "13.0", None, False, "1"), (False, "13.0", None, False, None), (True, "12.4", None, False, None),
     (True, "13.0", None, True, None), (True, "13.0", "0", False, "0"), (False, "13.0", "1", True, "1")],
)  # fmt: skip
def test_the_profiler_is_told_to_let_go_around_a_window_alone(monkeypatch, leaves, cuda, given, graphs, told):
    environment(monkeypatch, cuda, given, graphs=graphs)
    played, window = Profiler(monkeypatch), kineto.Window(leaves=leaves)
    assert window.begin() and os.environ.get("TEARDOWN_CUPTI") == given
    assert window.end() == [] and os.environ.get("TEARDOWN_CUPTI") == given
    assert played.told == [told, told]


def test_a_graph_that_was_made_inside_a_window_is_not_left_without_the_profiler(monkeypatch):
    environment(monkeypatch, "13.0", None)
    played, window = Profiler(monkeypatch), kineto.Window(leaves=True)
    window.begin()
    monkeypatch.setattr(kineto, "graphs", lambda: True)
    window.end()
    assert played.told == ["1", None]


def test_graphs_are_known_by_their_capture_and_by_their_memory(monkeypatch):
    monkeypatch.setattr(surroundings._Made, "graph", False)
    monkeypatch.setattr(surroundings, "_cuda_ready", lambda: True)
    pools = [{"segment_pool_id": (0, 0)}]
    monkeypatch.setattr(surroundings.torch.cuda, "memory_snapshot", lambda: pools)
    assert not surroundings.graphs()
    pools.append({"segment_pool_id": (0, 1)})
    assert surroundings.graphs()
    pools.pop()
    surroundings.graph_is_made()
    assert surroundings.graphs()


@pytest.mark.parametrize(("level", "start"), [("standard", 1), ("deep", 0)])
def test_the_first_window_is_on_the_account_of_the_start(monkeypatch, level, start):
    monkeypatch.setattr(windows, "Window", lambda *, leaves: SimpleNamespace(begin=lambda: True, end=lambda: []))
    probe, _ = started(monkeypatch, None, level=level)
    session, charged, corrected = probe.session, [], []
    session.charge_start, session.correct = charged.append, corrected.append
    session.trace, session.looks = SimpleNamespace(kept=None), None
    session.cadence.attend = lambda _step: None
    monkeypatch.setattr(probe, "_look_at_nothing_else", lambda: None)
    for _ in range(2):
        probe._open(30)
        probe._close()
    assert len(charged) == 2 * start and all(spent > 0 for spent in charged)
    assert corrected == [-spent for spent in charged]


def test_nothing_without_the_step_it_was_opened_for():
    probe = windows.WindowsProbe(SimpleNamespace(journal=None, trace=None))
    probe._write([Ran("k", 0, 0, 1, 0, 0)])  # writes to nobody


@pytest.mark.parametrize("given", [None, "2"])
def test_the_environment_is_as_it_was(monkeypatch, given):
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    if given:
        monkeypatch.setenv("KINETO_LOG_LEVEL", given)
    with kineto._environment({"KINETO_LOG_LEVEL": "9"}):
        assert os.environ["KINETO_LOG_LEVEL"] == (given or "9")
    assert os.environ.get("KINETO_LOG_LEVEL") == given
