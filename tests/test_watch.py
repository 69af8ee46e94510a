"""Watching a run: what is read and how often, what is shown in which room, and a real terminal beside a real run."""

from __future__ import annotations

import io
import json
import math
import os
import pwd
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import launching
import pexpect
import pytest
from live_runs import Recorder, new_run, tree
from making import INF, NAN, Made
from rich.console import Console

from brickprof import pulse
from brickprof.cli.app import main
from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis import Diagnosis, Finding, Why, diagnose, saving
from brickprof.journal import EVENTS, Journal, ProcessLog
from brickprof.live import finding, watching
from brickprof.live.condition import Signs, alive
from brickprof.live.course import MOST, Course, Means
from brickprof.live.following import Follow
from brickprof.live.gradients import MOST_STEPS, Gradients
from brickprof.live.judging import Judging
from brickprof.live.keys import named
from brickprof.live.reading import Events, Rows
from brickprof.pulse import Beat
from brickprof.records import Event
from brickprof.reports.live import plot as plots
from brickprof.reports.live.facts import facts
from brickprof.reports.live.map import folded, heat_map
from brickprof.reports.live.scene import Condition, Heat, Point, Rank, Scene, Series
from brickprof.reports.live.screen import STYLES, Screen
from brickprof.run import Run

GOLDEN = Path(__file__).parent / "golden"
WANTED = frozenset((b"loss", b"losses", b"note"))
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
HOSTILE = "<script>\x1b[31m\x9b2J\u202e\ud800" + "x" * 10_000


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(new_run(tmp_path / "brickprof-runs"))
    yield made
    made.close()


def broken() -> Made:
    made = Made("embed", "blocks.0", "blocks.1", "head")
    made.owned()
    made.event("start", 0, rank=-1, pid=1)
    for step in range(20):
        made.event("sampled", step, roles=["grad"])
        for place, block in enumerate(made.numbers):
            made.sample("grad", step, block, l2=10.0 ** (place - 2 + step / 10))
        made.step(step, loss=NAN if step > 17 else 3.0 - step / 10)
    made.event("exited", 20, rank=-1, pid=1, code=1, text="the script exited 1", seconds=9.0)
    return made


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


# -- the rules


def test_judging_piece_by_piece_comes_to_the_same_verdict(tmp_path):
    made = broken()
    whole = made.run().save(tmp_path / "whole")
    expected = diagnose(Run.open(whole))
    growing = tmp_path / "growing"
    rank = growing / "rank00000"
    rank.mkdir(parents=True)
    for name in ("meta.json", "process.jsonl"):
        (growing / name).write_bytes((whole / name).read_bytes())
    files = [(whole / "rank00000" / name, rank / name) for name in (EVENTS, "samples.arrow", "spans.arrow")]
    for source, target in files:
        target.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    judging = Judging(growing)
    assert judging.look().to_dict() != expected.to_dict()
    for source, target in files:
        with target.open("ab") as stream:
            stream.write(source.read_bytes()[target.stat().st_size :])
    found = judging.look()
    assert [finding.to_dict() for finding in found.findings] == [finding.to_dict() for finding in expected.findings]
    assert found.verdict == expected.verdict
    assert {c.id: c.verdict for c in found.contracts} == {c.id: c.verdict for c in expected.contracts}


# -- the screen


def found() -> Diagnosis:
    """A diagnosis by hand: how rules word things is not what is tested here."""
    whys = (
        Why("Why is the loss nan in step 18?", "The loss of step 18 is nan, and nothing before it was seen to be."),
        Why("Why there?", "The weights of blocks.5 were not finite after the update of step 17.", "blocks.5"),
    )
    first = Finding(
        "F1", "C-TRAINSTABLE-001", Verdict.FAIL, Severity.ERROR, "learning-rate-too-high", 0.94, "blocks.5", "block",
        "global", "dynamic", 18, 18, {"dp": 0}, "loss is nan from step 18 on", whys,
        action="Lower the learning rate by a factor of 10 (it is 0.2), or warm it up.",
    )  # fmt: skip
    second = replace(first, id="F2", severity=Severity.WARNING, symptom="the first batch is small", first_step=3)
    return Diagnosis(Verdict.FAIL, {"id": "k3f9"}, (first, second))


@cache
def busy_scene() -> Scene:
    points = tuple(Point(step, 2 - step / 60, 2 - step / 70, 2 - step / 65) for step in range(60))
    layers = tuple(f"blocks.{n}.{part}" for n in range(12) for part in ("qkv", "mlp"))
    cells = tuple(tuple("N" if n == 5 and s > 30 else -3 + n / 9 + s / 40 for s in range(34)) for n in range(24))
    ranks = tuple(Rank(n, 59 - n, 1.0, 0.5, 1e-3, 0.04, "blocks.3 forward", 0.1) for n in range(3))
    return Scene(
        "k3f9", "train-20261116-0700-k3f9", "train.py", Condition("running"), 75.0, 59,
        Series("loss", points), Series("|grad|", points), Series("seconds a step", points),
        Heat(layers, tuple(range(0, 340, 10)), cells), ranks, diagnosis=found(),
        judged="judged up to step 40", notes=("1 damaged record in rank00000/events.jsonl",),
    )  # fmt: skip


def drawn(scene: Scene, width: int, height: int | None, **wishes) -> str:
    lines = Screen(**wishes).lines(scene, width, height)
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines) + "\n"


@pytest.mark.parametrize("width", [1, 9, 20, 39, 80, 99, 100, 163])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 9, 12, 24, 51])
def test_a_screen_fills_exactly_the_room_it_has(width, height):
    from rich.cells import cell_len

    wide = replace(busy_scene(), name="日本語" * 30)
    for scene in (busy_scene(), Scene("x", "x"), wide):
        lines = Screen().lines(scene, width, height)
        assert len(lines) == height
        assert {sum(cell_len(text) for text, _ in line) for line in lines} == {width}
        assert {style for line in lines for _, style in line} <= STYLES.keys()


@pytest.mark.parametrize(("width", "height"), [(120, 40), (80, 24), (44, 12)])
def test_frames_are_as_they_were(width, height):
    file = GOLDEN / f"watch-{width}x{height}.txt"
    assert drawn(busy_scene(), width, height) == file.read_text("utf-8")


def test_a_terminal_of_ascii_gets_ascii():
    text = drawn(busy_scene(), 120, 40, plain=True)
    assert text.isascii() and "* running" in text and "N nan" in text


def test_the_first_finding_stays_on_a_small_screen():
    symptom = busy_scene().diagnosis.findings[0].symptom
    for width, height in ((80, 6), (60, 9), (100, 12), (120, 50)):
        assert symptom in drawn(busy_scene(), width, height)


def test_another_finding_can_be_chosen():
    scene = busy_scene()
    first = scene.diagnosis.findings[0]
    many = tuple(replace(first, id=f"F{n}", symptom=f"symptom {n}") for n in range(30))
    scene = replace(scene, diagnosis=replace(scene.diagnosis, findings=many))
    for chosen in (0, 1, 17, 29, 99):
        assert re.search(rf"› ✗ F{min(chosen, 29)} symptom {min(chosen, 29)}\b", drawn(scene, 100, 30, chosen=chosen))


def test_ranks_in_trouble_are_shown_when_not_all_fit():
    ranks = tuple(
        Rank(n, 40 if n == 13 else 59, NAN if n == 57 else 1.0, 0.5, 1e-3, 0.04, "", 90.0 if n == 31 else 0.0)
        for n in range(64)
    )
    text = drawn(replace(busy_scene(), ranks=ranks), 120, 40)
    for number in (13, 31, 57):
        assert re.search(rf"^ +{number} ", text, re.M)
    assert re.search(r"and \d+ more ranks", text)


def test_hostile_strings_are_shown_and_do_nothing():
    scene = busy_scene()
    bad = replace(scene.diagnosis.findings[0], symptom=HOSTILE, root_cause=HOSTILE, action=HOSTILE, id=HOSTILE)
    scene = replace(scene, diagnosis=replace(scene.diagnosis, findings=(bad,)), judged=HOSTILE)
    text = drawn(scene, 100, 40)
    assert not UNSAFE.search(text.replace("\n", "")) and "<script>" in text
    told = json.dumps(facts(scene), ensure_ascii=False, allow_nan=False)
    assert not UNSAFE.search(told) and len(told) < 60_000


def test_no_colour_is_asked_for_and_none_comes(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    watching.frame(busy_scene(), Console(file=out, force_terminal=True, width=100, color_system="256"))
    codes = {code for found in re.findall(r"\x1b\[([\d;]*)m", out.getvalue()) for code in found.split(";")}
    assert codes <= {"", "0", "1", "2", "7"} and "running" in out.getvalue()


def test_keys_have_names():
    assert named(b"q") == (["quit"], b"")
    assert named(b"\x1b[A\x1b[Bp\t\x1b[Z") == (["up", "down", "pause", "down", "up"], b"")
    assert named(b"\x1b[") == ([], b"\x1b[") and named(b"\xff\x1b[99~q") == (["quit"], b"")


# -- the command


def test_the_newest_run_is_meant_and_one_being_recorded_before_it(tmp_path, monkeypatch, recorder):
    monkeypatch.chdir(tmp_path)
    recorder.tell("step 2")
    time.sleep(0.05)
    old = broken().run().save(tmp_path / "brickprof-runs" / "old-20261116-0701-aaaa")
    assert finding.the_run(None, "brickprof-runs") == recorder.folder
    recorder.tell("end")
    os.utime(old)
    assert finding.the_run(None, "brickprof-runs") == old
    assert finding.the_run("k3f9", "brickprof-runs") == recorder.folder
    assert finding.the_run(str(tmp_path / "brickprof-runs"), "nowhere") == old


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["watch"], "brickprof-runs holds no run."),
        (["watch", "xyz"], "There is no run xyz."),
        (["watch", "train.log"], "brickprof analyze --follow train.log"),
        (["watch", "--once", "--stay", "x"], "--once leaves at once"),
    ],
)
def test_wrong_usage_is_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.log").write_text("step 1 loss 2\n")
    assert main(words) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def judged(folder: Path) -> Path:
    """The run with its diagnosis beside it, as ``brickprof run`` leaves it."""
    run = Run.open(folder)
    saving.write(diagnose(run), folder, run)
    return folder


def test_one_frame_and_json_of_a_run_that_is_over(tmp_path, capsys):
    folder = judged(broken().run().save(tmp_path / "run"))
    before = tree(folder)
    assert main(["watch", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "ended: the script exited 1" in out and "✗ FAIL" in out and "N" in out
    assert main(["watch", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "FAIL" and told["state"] == "ended"
    assert told["curves"][0]["odd"] == [[18, "NaN"], [19, "NaN"]]
    assert tree(folder) == before


def test_a_run_that_may_not_be_read_says_whose_it_is(monkeypatch, capsys):
    """As somebody else, where this test may become somebody else; as oneself, with the rights taken away."""
    with tempfile.TemporaryDirectory(prefix="theirs-") as home:
        folder = judged(broken().run().save(Path(home) / "run"))
        Path(home).chmod(0o755)
        monkeypatch.chdir(home)
        assert main(["watch", str(folder), "--json"]) == 0  # everything is imported now
        capsys.readouterr()
        for closed in (folder / "rank00000", folder):
            closed.chmod(0)
            somebody = os.geteuid()
            if somebody == 0:
                os.seteuid(pwd.getpwnam("nobody").pw_uid)
            try:
                code = main(["watch", str(folder), "--once"])
            finally:
                os.seteuid(somebody)
                closed.chmod(0o755)
            told = capsys.readouterr().err
            owner = pwd.getpwuid(os.geteuid()).pw_name
            assert code == 2 and told.count("\n") == 1
            assert f"{closed} may not be read by you: it is {owner}'s." in told and f"chmod -R go+rX {folder}" in told


# -- beside a run that goes on


class Terminal:
    """What a terminal shows: moves of the cursor, text, the alternate screen."""

    SEQUENCE = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|\x1b.|([\r\n])|([^\x1b\r\n]+)")

    def __init__(self, command, cwd, rows=30, columns=100, **environment):
        surroundings = launching.environment(TERM="xterm-256color", **environment)
        for name in ("COLUMNS", "LINES"):
            surroundings.pop(name, None)
        self.shell = pexpect.spawn(
            launching.COMMAND[0], [*launching.COMMAND[1:], *map(str, command)], cwd=str(cwd), env=surroundings,
            dimensions=(rows, columns), timeout=1, encoding="utf-8", echo=False,
        )  # fmt: skip
        self.alternate, self.raw, self._rest = False, "", ""
        self.sized(rows, columns)

    def sized(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.cells = [[" "] * columns for _ in range(rows)]
        self.x = self.y = 0

    def resize(self, rows, columns):
        self.sized(rows, columns)
        self.shell.setwinsize(rows, columns)

    def pump(self, seconds=0.2) -> bool:
        """Takes what was written; False when nothing more will come."""
        try:
            text = self.shell.read_nonblocking(65536, seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += text
        text = self._rest + text
        cut = text.rfind("\x1b", max(len(text) - 12, 0))
        text, self._rest = (text[:cut], text[cut:]) if cut >= 0 else (text, "")
        for found in self.SEQUENCE.finditer(text):
            self._take(*found.groups())
        return True

    def _take(self, numbers, what, newline, words):
        if words:
            for letter in words:
                if self.y < self.rows and self.x < self.columns:
                    self.cells[self.y][self.x] = letter
                self.x += 1
        elif newline:
            self.x, self.y = (0, self.y) if newline == "\r" else (self.x, min(self.y + 1, self.rows - 1))
        elif what == "H":
            row, column = ([int(n or 1) for n in numbers.split(";")] + [1, 1])[:2] if numbers else (1, 1)
            self.x, self.y = column - 1, row - 1
        elif what == "J":
            self.cells = [[" "] * self.columns for _ in range(self.rows)]
        elif what in ("h", "l") and numbers == "?1049":
            self.alternate = what == "h"

    @property
    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self.cells)

    def until(self, pattern, seconds=20.0) -> re.Match:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if found := re.search(pattern, self.text, re.S):
                return found
            if not self.pump():
                break
        raise AssertionError(f"{pattern!r} did not appear in\n{self.text}")

    def end(self, seconds=20.0) -> int:
        limit = time.monotonic() + seconds
        while self.pump():
            assert time.monotonic() < limit, self.text
        self.shell.close()
        return self.shell.exitstatus if self.shell.signalstatus is None else -self.shell.signalstatus


def test_a_screen_beside_a_run_that_goes_on(tmp_path, recorder):
    recorder.tell("step 12")
    before = tree(recorder.folder)
    screen = Terminal(["watch", "--stay"], tmp_path)
    screen.until(r"● running.*step 11 · .*blocks\.0")
    assert screen.alternate and tree(recorder.folder) == before
    recorder.tell("step 3")
    screen.until(r"step 14 · ")
    screen.shell.send("p")
    screen.until(r"paused, p goes on")
    recorder.tell("step 5")
    screen.pump(0.8)
    assert "step 14 · " in screen.text
    screen.shell.send("p")
    screen.until(r"step 19 · ")
    screen.resize(12, 50)
    screen.until(r"step 19 · ")
    assert all(len(line) <= 50 for line in screen.text.splitlines())
    recorder.tell("nan 3")
    screen.resize(34, 110)
    screen.until(r"embed [^\n]*N.*✗ FAIL so far.*› ✗ F1 ", 30)
    screen.shell.send("q")
    assert screen.end() == 0 and not screen.alternate
    assert recorder.process.poll() is None


def test_the_screen_closes_with_the_run_and_leaves_its_report(tmp_path, recorder):
    recorder.tell("step 5")
    screen = Terminal(["watch"], tmp_path)
    screen.until(r"● running")
    recorder.tell("nan 2")
    recorder.tell("end")
    assert screen.end(40) == 0
    after = screen.raw.rpartition("\x1b[?1049l")[2]
    assert "FAIL" in after and "Cause" in after


def test_a_signal_gives_the_terminal_back(tmp_path, recorder):
    recorder.tell("step 2")
    screen = Terminal(["watch"], tmp_path)
    screen.until(r"● running")
    screen.shell.kill(15)
    assert screen.end() == 143 and not screen.alternate and "\x1b[?25h" in screen.raw


def test_two_ranks_have_a_table_and_are_killed_one_after_the_other(tmp_path, recorder):
    other = Recorder(recorder.folder, rank=1)
    try:
        recorder.tell("step 9")
        other.tell("step 4")
        screen = Terminal(["watch", "--stay"], tmp_path)
        screen.until(r"rank +step +behind.*\n +0 +8 .*\n +1 +3 +5 ")
        other.tell("nan 6")
        screen.until(r"\n +1 +9 +nan")
        other.kill()
        screen.until(r"\n +1 +9 [^\n]* gone\n")
        assert "killed" not in screen.text
        recorder.kill()
        screen.until(r"✗ killed: its process is gone without a word \(pid \d+, \d+\)")
        screen.shell.send("q")
        assert screen.end() == 0
    finally:
        other.close()


def test_a_pipe_gets_lines_and_the_end(tmp_path, recorder):
    recorder.tell("step 5")
    watcher = subprocess.Popen(
        [*launching.COMMAND, "watch"], cwd=tmp_path, env=launching.environment(), stdout=subprocess.PIPE, text=True
    )
    first = watcher.stdout.readline()
    recorder.tell("nan 2")
    recorder.tell("end")
    rest = watcher.communicate(timeout=40)[0]
    assert re.match(r"running · step 4 · 0:\d\d · loss ", first)
    assert "\x1b" not in first + rest
    assert re.search(r"^error in step \d+: loss is nan", rest, re.M) and "ended (the recording was closed)" in rest
    assert watcher.returncode == 0


REAL = """
import torch, time
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(100000):
    x = torch.randn(32, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.02)
"""


def test_a_real_run_that_is_watched_and_then_killed(tmp_path):
    launching.script(tmp_path, REAL)
    job = launching.start(["t.py"], tmp_path)
    try:
        folder = launching.until(lambda: [*(tmp_path / "brickprof-runs").glob("t-*")], 20)[0]
        launching.until(lambda: (beat := pulse.read(folder / "rank00000")) is not None and beat.step > 5, 40)
        screen = Terminal(["watch", "--stay"], tmp_path, columns=90)
        found = screen.until(r"● running.*step (\d+) · .*loss  \d.*log10 \|grad\| by block.*\n0 [░▒▓█·]", 30)
        screen.until(rf"step (?!{found[1]} )\d+ · ")
        launching.end(launching.script_pid(tmp_path))
        screen.until(r"✗ killed: ended by SIGKILL", 20)
        screen.shell.send("q")
        assert screen.end() == 0
    finally:
        job.terminate()
        job.communicate(timeout=30)


def test_the_watcher_is_found_to_read_only(tmp_path):
    """In a folder that nobody may write into."""
    folder = broken().run().save(tmp_path / "run")
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = tree(folder)
    scene = watching.once(folder)
    assert isinstance(scene.diagnosis, Diagnosis) and tree(folder) == before
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
