"""Following a run: what is read and how often, numbers over steps, gradients, and how a run is."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import launching
import pytest
from live_runs import HOSTILE, JUDGED, UNSAFE, Recorder, broken, new_run
from making import INF, NAN, Made

from brickprof import pulse
from brickprof.errors import UnreadableInput
from brickprof.journal import EVENTS, Journal, ProcessLog
from brickprof.journal.lines import encode
from brickprof.live import watching
from brickprof.live.condition import Signs, alive
from brickprof.live.course import MOST, Course, Means
from brickprof.live.following import Follow
from brickprof.live.gradients import MOST_STEPS, Gradients
from brickprof.live.reading import Events, Rows
from brickprof.pulse import Beat
from brickprof.records import Event
from brickprof.reports.live import plot as plots
from brickprof.reports.live.facts import facts
from brickprof.reports.live.map import folded, heat_map
from brickprof.reports.live.scene import Condition, Heat, Point
from brickprof.reports.live.screen import Screen
from brickprof.run import Run

WANTED = frozenset((b"loss", b"losses", b"note"))


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(new_run(tmp_path / "brickprof-runs"))
    yield made
    made.close()


# -- reading


def test_events_are_read_once_a_half_line_waits_and_other_kinds_are_left_alone(tmp_path):
    journal = Journal(tmp_path / "rank00000")
    events = Events(tmp_path / "rank00000" / EVENTS, 0, WANTED)
    journal.event("loss", 1, {"value": 2.0})
    journal.event("batch", 1, {})
    assert [(event.kind, event.step) for event in events.poll()] == [("loss", 1)]
    assert events.poll() == [] and events.at == events.seen == events.size
    journal.event("loss", 2, {"value": 1.0})
    whole = events.path.read_bytes()
    events.path.write_bytes(whole[:-5])
    assert events.poll() == []
    events.path.write_bytes(whole)
    assert [event.step for event in events.poll()] == [2]
    journal.close()


def test_a_long_file_is_read_a_bounded_piece_at_a_time(tmp_path):
    journal = Journal(tmp_path / "rank00000")
    for step in range(500):
        journal.event("loss", step, {"value": 2.0})
    journal.close()
    events = Events(tmp_path / "rank00000" / EVENTS, 0, WANTED)
    pieces = []
    while piece := events.poll(most=4096):
        pieces.append(len(piece))
        assert events.at <= 4096 * len(pieces)
    assert sum(pieces) == 500 and len(pieces) > 5


def test_a_file_that_was_compacted_says_nothing_twice(tmp_path):
    path = tmp_path / "rank00000" / EVENTS
    journal = Journal(path.parent)
    for step in range(5):
        journal.event("loss", step, {"value": 2.0})
    journal.close()
    events = Events(path, 0, WANTED)
    assert len(events.poll()) == 5
    lines = path.read_bytes().splitlines(keepends=True)
    path.with_name("new").write_bytes(b"".join(lines[2:]))
    os.replace(path.with_name("new"), path)
    assert events.poll() == []
    journal = Journal(path.parent)
    journal.event("loss", 9, {"value": 2.0})
    journal.close()
    assert [event.step for event in events.poll()] == [9]


def test_damage_is_counted_and_what_is_whole_is_read(tmp_path):
    path = tmp_path / "rank00000" / EVENTS
    journal = Journal(path.parent)
    for step in range(6):
        journal.event("loss", step, {"value": 2.0})
    journal.close()
    data = bytearray(path.read_bytes())
    data[data.find(b'"step":2') + 9] ^= 0x7
    path.write_bytes(data)
    events = Events(path, 0, WANTED)
    assert [event.step for event in events.poll()] == [0, 1, 3, 4, 5]
    assert events.lost == 1


def test_of_a_long_table_the_newest_rows_are_read(tmp_path):
    journal = Journal(tmp_path / "rank00000")
    for step in range(400):
        for tensor in range(5):
            journal.sample((step, step, 0, 1, tensor, 1, 64, 0, 0, 1.0, 1.0, 0.0, 0.0, None, None, None, None))
        journal.flush()
    journal.close()
    rows = Rows(tmp_path / "rank00000" / "samples.arrow", most=100_000)
    table = rows.poll()
    assert 0 < table.num_rows < 2000 and table["step"].to_pylist()[-1] == 399
    assert rows.poll() is None


# -- numbers over steps


def test_a_course_keeps_its_extremes_however_long_it_is():
    course = Course("loss")
    for step in range(20_000):
        course.add(step, 50.0 if step == 7_001 else -3.0 if step == 12 else NAN if step == 4_000 else 1.0)
    points = course.series().points
    assert len(points) <= MOST and points[-1].step == 19_999
    assert max(point.high for point in points) == 50.0 and min(point.low for point in points) == -3.0
    assert [point.odd for point in points if point.odd] == ["N"]


def test_a_step_is_the_mean_of_its_micro_batches():
    means = Means(Course("loss"))
    for step, value in ((0, 1.0), (0, 3.0), (1, 5.0)):
        means.add(step, value)
    assert [(point.step, point.last) for point in means.course.series(means.open).points] == [(0, 2.0), (1, 5.0)]


def test_what_is_not_finite_is_a_letter_in_a_plot():
    points = [Point(step, 1.0 + step, 1.0 + step, 1.0 + step) for step in range(20)]
    points[10] = Point(10, INF, -INF, NAN, "N")
    points[15] = Point(15, INF, -INF, INF, "I")
    for braille in (True, False):
        drawn = plots.plot(points, 20, 5, braille=braille)
        assert [drawn.rows[0][place] for place in drawn.odd] == ["N", "I"]
        assert all(len(row) == 20 for row in drawn.rows) and (drawn.low, drawn.high) == (1.0, 20.0)
    assert plots.bars(points, 20)[10] == "N"
    nothing = plots.plot([Point(0, INF, -INF, NAN, "N")], 8, 3)
    assert "N" in nothing.rows[0] and math.isnan(nothing.low)


def test_a_falling_curve_falls_on_the_screen():
    points = [Point(step, 10.0 - step, 10.0 - step, 10.0 - step) for step in range(10)]
    rows = plots.plot(points, 10, 10, braille=False).rows
    heights = [next(row for row in range(10) if rows[row][column] == "*") for column in range(10)]
    assert heights == sorted(heights) and heights[0] == 0 and heights[-1] == 9


# -- gradients


def grads(made: Made, tmp_path: Path) -> Gradients:
    folder = made.run().save(tmp_path / "run")
    found = Gradients()
    found.names = {number: name for name, number in made.numbers.items()}
    found.take(Rows(folder / "rank00000" / "samples.arrow").poll())
    return found


def test_cells_are_letters_where_they_are_no_number(tmp_path):
    made = Made("a", "b", "c", "d", "e")
    made.sample("grad", 3, "a", l2=100.0)
    made.sample("grad", 3, "b", l2=NAN, absmax=NAN, nan=2)
    made.sample("grad", 3, "c", l2=INF, absmax=INF, inf=1)
    made.sample("grad", 3, "d", l2=0.0, absmax=0.0)
    made.sample("grad", 3, "e", l2=None, absmax=None, nan=None, inf=None)
    made.sample("weight", 3, "e", l2=5.0)
    heat = grads(made, tmp_path).heat(0)
    assert heat.layers == ("a", "b", "c", "d") and heat.cells == ((2.0,), ("N",), ("I",), ("0",))


def test_only_the_last_steps_are_kept(tmp_path):
    made = Made("a")
    for step in range(MOST_STEPS + 50):
        made.sample("grad", step, "a")
    assert grads(made, tmp_path).heat(0).steps == tuple(range(50, MOST_STEPS + 50))


def test_layers_are_folded_and_a_nan_is_never_folded_away():
    layers = [f"blocks.{n}.{part}" for n in range(30) for part in ("qkv", "mlp")]
    cells = [(1.0, None) for _ in layers]
    cells[37] = ("N", 2.0)
    names, rows = folded(layers, cells, 30)
    assert names[18] == "blocks.18" and rows[18] == ["N", 2.0]
    names, rows = folded(layers, cells, 7)
    assert len(names) <= 7 and "N" in [row[0] for row in rows]
    drawn = heat_map(Heat(tuple(layers), (1, 2), tuple(cells)), 40, 7)
    assert any("N" in row for row in drawn.rows)


# -- running, silent, ended, killed

OLD = 1
"""A process that lives longer than any test."""


def beat(pid: int, age: float = 0.0, step: int = 5, state: str = "recording", step_ns: int = 10**7) -> Beat:
    stamp = int((time.time() - age) * 1e9)
    return Beat(pid, stamp, step, 1.0, 1.0, 1.0, 0.01, step_ns, 9, state, "idle", ())


def gone() -> int:
    """The pid of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("exits", "word"),
    [
        ({"code": 0, "text": "the script exited 0"}, "ended"),
        ({"code": 1, "text": "the script exited 1"}, "ended"),
        ({"code": 137, "signal": 9, "text": "ended by SIGKILL: killed"}, "killed"),
    ],
)
def test_the_launch_says_how_it_ended(exits, word):
    signs = Signs(launched={7: Event("start", 0, {"pid": 7})})
    signs.take(Event("exited", 0, {"pid": 7, **exits}))
    assert signs.condition() == Condition(word, exits["text"])


def test_a_job_of_several_is_over_when_all_are():
    signs = Signs(beats={0: beat(os.getpid())})
    for pid in (os.getpid(), os.getppid()):
        signs.take(Event("start", 0, {"pid": pid}, time_ns=time.time_ns()))
    signs.take(Event("exited", 0, {"pid": os.getppid(), "code": 0, "text": "the script exited 0"}))
    assert signs.condition().word == "running"
    signs.take(Event("exited", 0, {"pid": os.getpid(), "code": 3, "text": "the script exited 3"}))
    assert signs.condition() == Condition("ended", "the script exited 3")


def test_what_was_raised_before_a_rank_was_started_again_is_past():
    signs = Signs()
    for seq, (kind, fields) in enumerate([
        ("run", {"pid": 1}), ("exception", {"type": "OSError", "message": "x"}), ("exit", {}), ("run", {"pid": 2}),
        ("exit", {}),
    ]):  # fmt: skip
        signs.take(Event(kind, 0, fields, seq, seq + 1))
        if seq == 2:
            assert signs.condition() == Condition("ended", "OSError: x")
    assert signs.condition() == Condition("ended", "the recording was closed")


def test_running_silent_and_gone():
    assert Signs(beats={0: beat(os.getpid())}).condition().word == "running"
    assert Signs(beats={0: beat(os.getpid(), step=0)}).condition().word == "starting"
    assert Signs(beats={0: beat(OLD, age=60)}).condition() == Condition("silent", "for 60 s")
    slow = Signs(beats={0: beat(OLD, age=60, step_ns=20 * 10**9)})
    assert slow.condition().word == "running"
    assert Signs(beats={0: beat(gone(), age=60)}).condition().word == "killed"
    assert Signs(beats={0: beat(gone(), age=60)}, host="another-machine").condition().word == "silent"
    assert Signs(beats={0: beat(os.getpid(), state="finished")}).condition().word == "ended"
    assert Signs().condition().word == "ended"


def test_a_process_that_just_vanished_has_a_moment_to_be_told_of():
    signs, now = Signs(beats={0: beat(gone())}), time.time()
    assert signs.condition(now).word == "running"
    assert signs.condition(now + 3).word == "killed"


def test_a_process_of_somebody_else_is_seen_to_live(monkeypatch):
    def refused(pid: int, number: int) -> None:
        assert number == 0
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert alive(OLD, time.time()) and Signs(beats={0: beat(OLD)}).condition().word == "running"
    monkeypatch.setattr("brickprof.launch.processes.stat", lambda pid: None)  # a machine that hides them
    assert alive(OLD, time.time())


def test_a_pid_that_is_somebody_elses_by_now_is_not_alive():
    assert alive(os.getpid(), time.time())
    assert not alive(os.getpid(), time.time() - 10**7)


# -- following


def test_following_sees_what_the_whole_run_has(tmp_path):
    made = broken()
    folder = made.run().save(tmp_path / "run")
    follow = Follow(folder)
    follow.poll()
    scene, run = follow.scene(), Run.open(folder)
    assert [point.step for point in scene.loss.points] == list(run.loss["step"])
    assert [point.last for point in scene.loss.points][:18] == list(run.loss["value"])[:18]
    assert scene.loss.points[-1].odd == "N" and follow.alarms == 1
    assert scene.condition == Condition("ended", "the script exited 1") and scene.read == 1.0
    assert scene.heat.layers == ("embed", "blocks.0", "blocks.1", "head") and len(scene.heat.steps) == 20


def test_the_first_looks_at_a_long_run_tell_how_far_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("brickprof.live.reading.MOST_BYTES", 2048)
    monkeypatch.setattr(Events.poll, "__defaults__", (2048,))
    follow = Follow(broken().run().save(tmp_path / "run"))
    follow.poll()
    assert 0 < follow.scene().read < 1
    for _ in range(50):
        follow.poll()
    assert follow.scene().read == 1.0 and len(follow.scene().loss.points) == 20


def test_a_line_that_a_kill_has_torn_is_no_reason_to_wait(tmp_path):
    folder = broken().run().save(tmp_path / "run")
    events = folder / "rank00000" / EVENTS
    events.write_bytes(events.read_bytes() + b'{"seq":99,"t":1,"kind":"loss","st' + b"x" * 3000)
    follow = Follow(folder)
    follow.poll()
    assert follow.scene().read == 1.0 and len(follow.scene().loss.points) == 20


def test_losses_that_only_lie_on_the_slate_are_seen(tmp_path):
    folder = new_run(tmp_path)
    journal = Journal(folder / "rank00000")
    beats = pulse.Pulse(folder / "rank00000")
    for step in range(5):
        journal.loss(step, 0, 2.0 - step / 10, time.time_ns())
    beats.step = 4
    beats.beat(time.time_ns())
    assert b'"losses"' not in (folder / "rank00000" / EVENTS).read_bytes()
    follow = Follow(folder)
    follow.poll()
    assert [point.step for point in follow.scene().loss.points] == [0, 1, 2, 3, 4]
    journal.close()


def test_a_hostile_journal_is_no_traceback(tmp_path):
    folder = new_run(tmp_path)
    journal = Journal(folder / "rank00000")
    odd = [10**400, "NaN", None, [], {}, True, HOSTILE, -1e308]
    for value in odd:
        for kind in ("loss", "grad", "clip", "brick", "note", "dropped", "probe_off", "exception"):
            names = ("value", "l2", "norm", "id", "path", "text", "reason", "probe", "type", "message")
            journal.event(kind, 0, dict.fromkeys(names, value))
        journal.event("losses", 0, {name: [value] for name in ("steps", "micros", "values", "times")})
        for kind in ("start", "exited", "card", "hang"):
            names = ("pid", "code", "text", "device", "what", "name", "power", "throttle", "seconds", "place")
            ProcessLog(folder).event(kind, 0, dict.fromkeys(names, value) | {"what": "sample"})
    journal.close()
    follow = Follow(folder)
    follow.poll()
    lines = Screen().lines(follow.scene(), 80, 24)
    assert not UNSAFE.search("".join(text for line in lines for text, _ in line))
    json.dumps(facts(follow.scene()), allow_nan=False)


@pytest.mark.parametrize("frame", [(10**400, 1, 5), (9, 10**400, 5), (9, 1, 10**400), (9, 1, 2**60), (9, 1, -(10**30))])
def test_a_frame_that_capture_never_writes_is_left_alone(tmp_path, frame):
    folder = broken().run().save(tmp_path / "run")
    with (folder / "rank00000" / EVENTS).open("ab") as events, (folder / "process.jsonl").open("ab") as launch:
        for kind in ("loss", "exit", "run", "exception", "start"):
            line = encode(*frame[:2], kind, frame[2], {"value": 1.0, "pid": 1})
            events.write(line)
            launch.write(line)
    follow = Follow(folder)
    follow.poll()
    scene = follow.scene()
    json.dumps(facts(scene), allow_nan=False)
    Screen().lines(scene, 80, 24)
    assert scene.step == 19 and scene.condition == Condition("ended", "the script exited 1")


def test_a_card_of_more_memory_than_there_is_number_is_no_traceback(tmp_path):
    folder = new_run(tmp_path)
    fields = {"device": 0, "what": "sample", "name": "H200", "memory_used": 10**400, "memory_total": 10**400}
    ProcessLog(folder).event("card", 0, fields)
    follow = Follow(folder)
    follow.poll()
    assert "H200" in "".join(text for line in Screen().lines(follow.scene(), 120, 40) for text, _ in line)


def test_a_pipe_in_place_of_a_file_holds_nobody_up(tmp_path):
    folder = broken().run().save(tmp_path / "run")
    (folder / "rank00000" / EVENTS).unlink()
    os.mkfifo(folder / "rank00000" / EVENTS)
    with pytest.raises(UnreadableInput, match=r"events\.jsonl is no plain file"):
        Follow(folder)


@pytest.mark.parametrize("over", [False, True])
def test_a_run_whose_folder_goes_away_is_over(tmp_path, recorder, over):
    recorder.tell("step 3")
    watched = watching.Watched(recorder.folder)
    try:
        if over:
            recorder.tell("end")
        assert watched.tick(0.0).condition.word == ("ended" if over else "running")
        shutil.rmtree(recorder.folder)
        said = "the recording was closed" if over else "its folder is gone"
        scene = launching.until(lambda: (found := watched.tick(time.monotonic())) and watched.settled and found, JUDGED)
        assert (scene.condition, scene.step) == (Condition("ended", said), 2)
    finally:
        watched.close()


def test_a_rank_that_is_started_again_tells_the_step_it_is_at(tmp_path):
    folder = new_run(tmp_path)
    follow = Follow(folder)
    for attempt, steps in (("rank00000", range(9)), ("rank00000-r1", range(5, 8))):
        journal = Journal(folder / attempt)
        for step in steps:
            journal.event("loss", step, {"value": 2.0})
        journal.close()
        follow.poll(time.monotonic() + 10 * len(attempt))
        assert follow.scene().step == steps[-1]
    assert len(follow.scene().loss.points) == 9 and len(follow.scene().seconds.points) == 8


def test_what_was_judged_is_what_the_rules_had_seen(tmp_path, recorder):
    recorder.tell("step 4")
    watched = watching.Watched(recorder.folder)
    try:
        launching.until(lambda: watched.tick(time.monotonic()).diagnosis, JUDGED)
        recorder.tell("step 50")
        follow = watched.follow
        follow.poll(time.monotonic() + 5)
        assert (follow.scene().step, follow.scene().judged) == (53, "judged from 4 steps")
    finally:
        watched.close()
