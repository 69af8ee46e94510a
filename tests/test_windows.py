"""Kernels of any script, from the events of a profiler that is played here."""

from __future__ import annotations

import json
import os
import random
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from brickprof.bricks import Kind
from brickprof.capture import patches, surroundings
from brickprof.capture.taps import kineto
from brickprof.capture.taps.kineto import Ran
from brickprof.capture.trace import PHASE
from brickprof.probes import windows
from brickprof.reports import timeline
from brickprof.settings import Settings


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
    assert kineto.found(EVENTS, 1000, within=(1100, 1300)) == [gemm]
    assert kineto.found(EVENTS, 1000, within=(1101, 1991)) == [copy, late]


def test_a_moment_lies_in_the_innermost_span():
    places = windows.Places([(0, 100, 1, 5, 11), (10, 50, 2, 6, 12), (20, 30, 3, 7, 13), (60, 90, 4, 8, 14)])
    found = [places.around(at, default=(9, 9, 0)) for at in (5, 15, 25, 40, 55, 70, 100)]
    assert [number for number, _, _ in found] == [1, 2, 3, 2, 1, 4, 9]
    assert found[2] == (3, 7, 13)
    # most first, of equal ones the earlier; what lies in none is nobody's
    launched = [Ran("k", at, at, 1, 0, 0) for at in (5, 61, 62, 15, 16, 25, 100)]
    assert places.of(launched) == [[14, 2], [12, 2], [11, 1], [13, 1]]


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
    events = [*EVENTS[:-1], Event("of the next step", 2100, 5, 4)]
    probe._write(kineto.found(events, within=(whole[6], whole[7])), whole)
    kernel, copy = rows
    assert (kernel[1], kernel[3], kernel[8]) == (2, PHASE["forward"], 200)
    assert json.loads(kernel[10]) == {"device_start_ns": 500, "source": "profiler"}
    told = {"bytes": 4096, "how": "Memcpy HtoD (Pinned -> Device)", "device_start_ns": 900, "source": "profiler"}
    assert (copy[1], copy[3], json.loads(copy[10])) == (1, PHASE["user"], told)
    assert [brick.kind for brick in bricks] == [Kind.KERNEL, Kind.TRANSFER] and bricks[1].path == "H2D"
    ((kind, told),) = facts
    assert kind == "window" and (told["kernels"], told["busy_ns"], told["step_ns"]) == (2, 240, 1000)
    assert told["most_launched"][0] == ["gemm", 1, "", [[2, 1]]]


def test_what_brickprof_launched_is_left_out():
    rows, facts = [], []
    session = SimpleNamespace(
        journal=SimpleNamespace(span=rows.append, brick=lambda _: 1),
        trace=SimpleNamespace(new_id=lambda: 50, kept=None),
        fact=lambda kind, fields, **_: facts.append(fields),
    )
    probe = windows.WindowsProbe(session)
    whole = (1, 0, 1, PHASE["step"], 12, 0, 0, 1000, None, None, None)
    probe._spans = [whole]
    probe._looks = [(100, 200), *((at, at + 5) for at in range(110, 180, 10)), (400, 500)]
    probe._write([Ran("k", at, at + 50, 5, 7, 0) for at in (99, 100, 148, 199, 200, 450, 600)], whole)
    assert [row[6] for row in rows] == [99, 200, 600]
    assert (facts[0]["kernels"], facts[0]["left_out"], facts[0]["busy_ns"]) == (3, 4, 15)


def written(ran, spans=(), lasted=20_000):
    """The rows of spans and the window event of a step in which this ran; bricks by their number."""
    rows, facts, bricks = [], [], []

    def number(brick):
        if brick not in bricks:
            bricks.append(brick)
        return 100 + bricks.index(brick)

    session = SimpleNamespace(
        journal=SimpleNamespace(span=rows.append, brick=number),
        trace=SimpleNamespace(new_id=lambda: 50, kept=None),
        fact=lambda kind, fields, **_: facts.append(fields),
    )
    probe = windows.WindowsProbe(session)
    whole = (1, 0, 1, PHASE["step"], 12, 0, 0, lasted, None, None, None)
    probe._spans = [*spans, whole]
    probe._write(ran, whole)
    return rows, facts[0], {100 + place: brick.path for place, brick in enumerate(bricks)}


def test_a_step_with_more_kernels_than_spans_has_the_sums_of_the_others():
    """Of 10,002, those of the backward come last, and take nearly all of the time."""
    spans = [(2, 1, 7, PHASE["forward"], 12, 0, 0, 9_000, None, None, None),
             (3, 1, 8, PHASE["backward"], 12, 0, 9_000, 19_000, None, None, None)]  # fmt: skip
    ran = [Ran("fwd", at, at, 1_000, 7, 0) for at in range(4_000)]
    ran += [Ran("bwd", 10_000 + at, 10_000 + at, 10_000, 7, 0) for at in range(6_000)]
    ran += [Ran("Memcpy DtoH (Device -> Pinned)", 19_500 + at, 19_500 + at, 1, 7, 64) for at in range(2)]
    rows, told, bricks = written(ran, spans)
    count, ns = {}, {}
    for kernel, many, spent in [(row[2], 1, row[8]) for row in rows] + [
        (kernel, many, spent) for kernel, _, _, many, spent in told["unwritten"]
    ]:
        name = bricks[kernel]
        count[name], ns[name] = count.get(name, 0) + many, ns.get(name, 0) + spent
    assert count == {"fwd": 4_000, "bwd": 6_000, "D2H": 2}
    assert ns == {"fwd": 4_000_000, "bwd": 60_000_000, "D2H": 2}
    assert (told["kernels"], told["written"], len(rows)) == (10_002, 4096, 4096)
    launched = {(bricks[kernel], brick, phase) for kernel, brick, phase, _, _ in told["unwritten"]}
    assert launched == {("fwd", 7, "forward"), ("bwd", 8, "backward")}
    assert told["median_ns"] == 10_000
    # in order, every copy among them, and of equal ones some from everywhere
    moments = [row[6] for row in rows]
    assert moments == sorted(moments) and moments[-2:] == [19_500, 19_501]
    assert max(after - before for before, after in pairwise(moments) if after < 4_000) < 10
    assert max(moments[:-2]) > 15_990


def test_a_step_whose_kernels_all_have_spans_has_no_sums():
    rows, told, _ = written([Ran("k", at, at, 5, 7, 0) for at in range(4096)])
    assert "unwritten" not in told and len(rows) == told["written"] == 4096


def test_the_longest_kernels_always_have_a_span():
    ran = [Ran("k", at, at, 100_000 if at % 10 == 0 else 5, 7, 0) for at in range(9_000)]
    rows, _, _ = written(ran)
    assert sum(row[8] == 100_000 for row in rows) == 900


def test_sums_of_very_many_blocks_stay_few_and_lose_nothing():
    sums = {(1, block, PHASE["forward"]): [1, block] for block in range(1, 3_001)}
    told = windows.summed(sums)
    assert len(told) == 1_025 and told[-1][:3] == [1, 0, "user"]
    assert (sum(row[3] for row in told), sum(row[4] for row in told)) == (3_000, sum(range(3_001)))


def test_a_moment_is_found_among_very_many_spans_too():
    """The innermost of those that have it, which may overlap; as if each was asked."""
    draw = random.Random(0)
    spans = [(at * 16, at * 16 + draw.randrange(1, 400), at, 5, at) for at in range(300)]
    spans += [(at * 16, at * 16 + 2_000, 300 + at, 5, at) for at in range(0, 300, 7)]
    draw.shuffle(spans)
    places = windows.Places(spans)
    for moment in range(0, 5_400, 7):
        found = [span for span in spans if span[0] <= moment < span[1]]
        inner = max(found, key=lambda span: (span[0], -span[1]), default=(0, 0, -1))
        assert places.around(moment, default=(-1, 0, 0))[0] == inner[2]


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    """The state that a process has of its profiler."""
    monkeypatch.setattr(kineto._Others, "prepared", False)
    monkeypatch.setattr(kineto.Window, "_open", None)
    monkeypatch.setattr(kineto.Window, "_before", {})


def started(monkeypatch, cuda=None, given=None, level="standard", *, graphs=False):
    """A probe for whose first window it is time, in a process that has that CUDA and that environment."""
    facts = []
    cadence = SimpleNamespace(planned=range(50, 51), budget=0.01, typical_ns=1e12)
    session = SimpleNamespace(
        cadence=cadence, settings=SimpleNamespace(level=level), on=SimpleNamespace(spans=True), spent=0,
        fact=lambda kind, fields, **_: facts.append((kind, fields)),
    )  # fmt: skip
    environment(monkeypatch, cuda, given, graphs=graphs)
    monkeypatch.setattr(windows.torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(windows, "hands_off", lambda: False)
    probe = windows.WindowsProbe(session)
    probe._began -= 1000
    probe._first = 0
    return probe, facts


def environment(monkeypatch, cuda, given, *, graphs=False):
    monkeypatch.setenv("KINETO_LOG_LEVEL", "2")
    monkeypatch.setenv("TEARDOWN_CUPTI", given or "")
    if given is None:
        monkeypatch.delenv("TEARDOWN_CUPTI")
    monkeypatch.setattr(kineto.torch.version, "cuda", cuda)
    monkeypatch.setattr(kineto, "graphs", lambda: graphs)


@pytest.mark.parametrize(
    ("level", "step", "spent", "wanted"),
    [("deep", 1, 0.0, False), ("deep", 3, 0.0, True), ("deep", 9, 0.5, False), ("deep", 9, 0.0001, True),
     ("standard", 19, 0.0, False), ("standard", 30, 0.0, True), ("standard", 30, 0.2, False),
     ("standard", 30, 0.05, True), ("deep", 40, 9, False)],
)  # fmt: skip
def test_a_window_is_opened_once_the_step_is_settled_and_it_fits_the_budget(monkeypatch, level, step, spent, wanted):
    probe, _ = started(monkeypatch, level=level)
    now = windows.time.monotonic()
    probe._spent, probe._began = spent, now - (10 if level == "deep" else 160 if spent else 16)
    probe._seen, probe._cost = int(spent > 0), 0.1 if level == "deep" or spent else probe._cost
    assert (probe._wanted(step) is not None) is wanted


def test_who_asks_for_a_step_has_its_window_though_there_was_one_before(monkeypatch):
    probe, _ = started(monkeypatch)
    probe._began, probe._spent, probe._seen = windows.time.monotonic() - 20, 0.15, 1
    assert probe._wanted(49) is None and probe._wanted(50) is True
    probe._asked = True
    assert probe._wanted(50) is None


@pytest.mark.parametrize(
    ("cuda", "given", "graphs", "by_itself", "asked"),
    [("13.0", None, False, True, True), ("12.6", None, False, True, True), ("12.4", None, False, None, False),
     ("13.0", "0", False, None, False), ("12.4", "1", False, True, True), (None, None, False, True, True),
     ("13.0", None, True, None, False), ("13.0", "1", True, None, None), ("13.0", "0", True, None, False)],
)  # fmt: skip
def test_no_window_whose_traces_every_launch_would_bear(monkeypatch, cuda, given, graphs, by_itself, asked):
    probe, facts = started(monkeypatch, cuda, given, graphs=graphs)
    assert [probe._wanted(step) for step in (30, 31)] == [by_itself] * 2
    assert probe._wanted(50) is asked  # whether the profiler lets go after it, if there is one
    assert [(kind, fields["operation"]) for kind, fields in facts] == [("fallback", "windows")] * (by_itself is None)
    deep, _ = started(monkeypatch, cuda, given, "deep", graphs=graphs)
    assert deep._wanted(30) is (None if asked is None else False)


def test_none_while_the_profiler_is_somebody_elses(monkeypatch):
    probe, facts = started(monkeypatch)
    monkeypatch.setattr(kineto, "graphs", lambda: 1 / 0)  # nothing is asked that takes time
    kineto._Others.prepared = True
    assert probe._wanted(30) is None and facts == [] and probe._spent == 0


class Profiler:
    """Plays torch's: what it finds in the environment when it begins and when it ends."""

    def __init__(self, monkeypatch) -> None:
        self.told = []
        self.flags = []
        monkeypatch.setattr(kineto.torch._C._autograd, "_profiler_enabled", lambda: False)
        monkeypatch.setattr(kineto.torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(kineto.profiler, "profile", lambda **_: self)
        monkeypatch.setattr(kineto.profiler, "_is_profiler_enabled", False)
        monkeypatch.setattr(kineto.torch._C._autograd, "_disable_profiler", self.end)

    def _look(self):
        self.told.append(os.environ.get("TEARDOWN_CUPTI"))

    def _prepare_trace(self):
        self._look()

    def _start_trace(self):
        kineto.profiler._run_on_profiler_start()

    def end(self):
        self._look()
        return SimpleNamespace(events=list)


@pytest.mark.parametrize(
    ("leaves", "given", "told"), [(True, None, "1"), (False, None, "0"), (True, "1", "1"), (False, "1", "0")]
)
def test_the_profiler_is_told_whether_to_let_go_until_it_has(monkeypatch, leaves, given, told):
    environment(monkeypatch, "13.0", given)
    played, window = Profiler(monkeypatch), kineto.Window(leaves=leaves)
    assert window.begin() and kineto.profiler._is_profiler_enabled
    assert window.end() == [] and not kineto.profiler._is_profiler_enabled
    assert played.told == [told, told] and os.environ["TEARDOWN_CUPTI"] == told  # a thread of the profiler asks it
    assert kineto.ways() == (True, True)  # by what the script has set, and not by what is left of the window
    kineto.restore()
    assert os.environ.get("TEARDOWN_CUPTI") == given and os.environ["KINETO_LOG_LEVEL"] == "2"
    assert window.end() == [] and len(played.told) == 2


def test_a_window_that_cannot_be_opened_leaves_nothing_behind(monkeypatch):
    environment(monkeypatch, "13.0", None)
    played, window = Profiler(monkeypatch), kineto.Window(leaves=True)

    def refuses():
        kineto.profiler._run_on_profiler_start()
        raise RuntimeError("no")

    played._start_trace = refuses
    with pytest.raises(RuntimeError, match="no"):
        window.begin()
    assert not kineto.profiler._is_profiler_enabled and "TEARDOWN_CUPTI" not in os.environ and not kineto.Window.acts
    assert window.end() == []


@pytest.mark.parametrize("when", ["graph", "last"])
def test_the_profiler_stays_where_a_graph_was_made_meanwhile_and_at_the_end_of_all(monkeypatch, when):
    environment(monkeypatch, "13.0", None)
    played, window = Profiler(monkeypatch), kineto.Window(leaves=True)
    window.begin()
    monkeypatch.setattr(kineto, "graphs", lambda: when == "graph")
    window.end(last=when == "last")
    assert played.told == ["1", "0"]


def test_whoever_takes_the_profiler_has_it_for_himself(monkeypatch):
    """Also in the steps in which he only warms it up."""
    environment(monkeypatch, "13.0", None)
    played = Profiler(monkeypatch)
    for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler"):
        monkeypatch.setattr(kineto.profiler, name, lambda *_, name=name: played.told.append(name))

    def replace(owner, name, make):
        monkeypatch.setattr(owner, name, make(getattr(owner, name)))

    kineto.install(replace)
    window = kineto.Window(leaves=True)
    assert window.begin() and played.told == ["1"]
    kineto.profiler._prepare_profiler()
    assert played.told == ["1", "1", "_prepare_profiler"] and "TEARDOWN_CUPTI" not in os.environ
    assert window.end() == [] and not kineto.Window(leaves=True).begin()
    kineto.profiler._enable_profiler()
    assert not kineto.Window(leaves=True).begin()
    kineto.profiler._disable_profiler()
    assert kineto.Window(leaves=True).begin()


def test_a_schedule_of_the_scripts_is_not_disturbed(request):
    """torch's profiler itself, which is only prepared in the steps that it warms up in."""
    if not patches.installed():
        request.addfinalizer(patches.uninstall)
        patches.install()
    activities = [torch.profiler.ProfilerActivity.CPU]
    schedule, seen = torch.profiler.schedule(wait=1, warmup=2, active=1, repeat=2), []
    with torch.profiler.profile(activities=activities, schedule=schedule, on_trace_ready=seen.append) as profile:
        for _ in range(10):
            torch.ones(4).sum()
            seen.append(kineto.in_use())
            profile.step()
    used = [each for each in seen if isinstance(each, bool)]
    assert used == [False, True, True, True] * 2 + [False] * 2
    assert len(seen) - len(used) == 2


@pytest.mark.parametrize(("known", "found"), [({(0, 0)}, False), ({(0, 0), (0, 1)}, True), (None, True)])
def test_graphs_are_known_by_their_memory(monkeypatch, known, found):
    asked = []

    def snapshot(include_traces=True):
        asked.append(include_traces)
        if known is None:
            raise RuntimeError("Calling snapshot with backend:cudaMallocAsync is not meaningful")
        return [{"segment_pool_id": pool} for pool in known]

    monkeypatch.setattr(surroundings._Made, "graph", False)
    monkeypatch.setattr(surroundings, "_cuda_ready", lambda: True)
    monkeypatch.setattr(surroundings.torch.cuda, "memory_snapshot", snapshot)
    assert [surroundings.graphs() for _ in range(2)] == [found] * 2
    assert asked == [False] * (1 if found else 2)  # what is known is not asked again


def test_graphs_are_known_by_their_capture(monkeypatch):
    monkeypatch.setattr(surroundings._Made, "graph", False)
    assert not surroundings.graphs()
    surroundings.graph_is_made()
    assert surroundings.graphs()


def opening(monkeypatch, seen, level="standard"):
    """A probe whose windows see these, one after the other; what is booked on the start, and what is corrected."""
    played = SimpleNamespace(begin=lambda: True, end=lambda _within, *, last: seen.pop(0))
    monkeypatch.setattr(windows, "Window", lambda *, leaves: played)
    probe, _ = started(monkeypatch, level=level)
    session, charged, corrected = probe.session, [], []
    session.charge_start, session.correct = charged.append, corrected.append
    session.trace, session.looks = SimpleNamespace(kept=None), None
    session.cadence.attend = lambda _step: None
    monkeypatch.setattr(probe, "_look_at_nothing_else", lambda: None)
    return played, probe, charged, corrected


@pytest.mark.parametrize(("level", "start"), [("standard", 1), ("deep", 0)])
def test_the_first_window_is_on_the_account_of_the_start(monkeypatch, level, start):
    played, probe, charged, corrected = opening(monkeypatch, [[], []], level)
    for _ in range(2):
        probe._open(30, leaves=True)
        probe._close()
    assert len(charged) == 2 * start and all(spent > 0 for spent in charged)
    assert corrected == [-spent for spent in charged]
    played.begin = lambda: False
    probe._open(31, leaves=True)
    assert probe._window is None and len(charged) == 2 * start


@pytest.mark.parametrize(
    ("level", "step", "took", "spent", "told"),
    [("standard", 30, 0.25, 0.0, 0.05), ("standard", 30, 0.25, 0.03, 0.02), ("standard", 30, 0.15, 0.0, 0.0),
     ("standard", 30, 60.0, 0.0, 0.1), ("standard", 50, 0.25, 0.0, 0.0), ("deep", 30, 0.25, 0.0, 0.0)],
)  # fmt: skip
def test_what_the_profiler_slows_its_steps_down_by_is_told_too(monkeypatch, level, step, took, spent, told):
    """Steps usually take 0.1 s, and there are two in a window."""
    _, probe, charged, corrected = opening(monkeypatch, [[], []], level)
    probe.session.cadence.typical_ns = 1e8
    for place in range(2):
        probe._open(step, leaves=True)
        before = len(charged), len(corrected)
        probe._opened, probe.session.spent = (probe._opened[0] - took, 0), int(spent * 1e9)
        probe._close()
        probe.session.spent = 0
        found = charged[before[0] :] if place == 0 else corrected[before[1] :]
        assert max(found, default=0) / 1e9 == pytest.approx(told, abs=0.02)
        assert not told or probe._cost > told  # what follows is planned by it


def test_what_it_took_to_open_one_is_not_taken_for_the_steps(monkeypatch):
    """The session books it in the middle of them."""
    played, probe, charged, _ = opening(monkeypatch, [[]])
    probe.session.cadence.typical_ns = 1e8
    played.begin = lambda: windows.time.sleep(0.05) or True
    probe._open(30, leaves=True)
    probe.session.spent = charged[0]
    probe._opened = (probe._opened[0] - 0.25, probe._opened[1])
    probe._close()
    assert charged[1] / 1e9 == pytest.approx(0.05, abs=0.02)


def test_a_window_that_saw_nothing_is_tried_once_more_as_the_first(monkeypatch):
    _, probe, _, _ = opening(monkeypatch, [[], [], [Ran("k", 0, 0, 1, 0, 0)]])
    counted = []
    for _ in range(3):
        probe._open(30, leaves=True)
        probe._close()
        counted.append(probe._seen)
    assert counted == [0, 1, 2]


def test_a_window_that_is_open_at_the_end_is_booked_once(monkeypatch):
    """Nobody takes the time of what a session does when it is closed."""
    ends = []
    played, probe, charged, corrected = opening(monkeypatch, [])
    played.end = lambda _within, *, last: ends.append(last) or []
    probe._open(30, leaves=True)
    probe.close()
    assert ends == [True] and len(charged) == 2 and corrected == [-charged[0]]


def test_nothing_without_the_step_it_was_opened_for(monkeypatch):
    _, probe, _, _ = opening(monkeypatch, [[Ran("k", 0, 0, 1, 0, 0)]])
    monkeypatch.setattr(probe, "_write", None)  # writes to nobody
    probe._open(30, leaves=True)
    probe._spans.append((1, 0, 1, PHASE["forward"], 12, 0, 0, 1000, None, None, None))
    probe._close()


def test_the_time_of_a_script_that_waits_for_something_else_is_not_the_steps(monkeypatch):
    probe, _ = started(monkeypatch)
    probe.session.cadence.typical_ns = 1e8
    wanted = [step for step in range(20, 400) if step != 50 and probe._wanted(step) is not None]
    assert wanted and min(wanted) == 150  # 0.15 s are one per cent of 15 s, though 1,000 have gone by


def test_what_a_report_says_of_the_first_window_is_what_the_probe_does():
    lasts = windows._EXPECTED_S / (windows._FIRST_SHARE * Settings().budget)
    assert pytest.approx(lasts) == timeline._FIRST_S
    assert f"about {timeline._FIRST_S} s of steps" in timeline.kernels_lacking([], {"unprofiled": True})
