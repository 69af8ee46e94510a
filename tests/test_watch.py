"""Watching a run: the rules, what is shown in which room, and the command."""

from __future__ import annotations

import io
import json
import os
import pwd
import re
import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from live_runs import HOSTILE, UNSAFE, Recorder, broken, new_run, tree
from making import NAN
from rich.console import Console

from brickprof.cli.app import main
from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis import Diagnosis, Finding, Why, diagnose, saving
from brickprof.journal import EVENTS
from brickprof.live import finding, watching
from brickprof.live.judging import Judging
from brickprof.live.keys import named
from brickprof.reports.live.facts import facts
from brickprof.reports.live.scene import Condition, Heat, Point, Rank, Scene, Series
from brickprof.reports.live.screen import STYLES, Screen
from brickprof.run import Run

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(new_run(tmp_path / "brickprof-runs"))
    yield made
    made.close()


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
        judged="judged from 41 steps", notes=("1 damaged record in rank00000/events.jsonl",),
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
