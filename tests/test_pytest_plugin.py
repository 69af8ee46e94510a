"""Trainings as tests: the fixtures in a real pytest, and a finding that is ratcheted from end to end."""

from __future__ import annotations

import functools
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from making import Made

from brickprof.cli.app import build, main
from brickprof.contracts import registry
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.diagnosis import Diagnosis, Finding, Why, diagnose
from brickprof.ratchet.training import Broken, Watched
from brickprof.records import Event, RunMeta
from brickprof.run import Run

pytest_plugins = ["pytester"]

build()  # a pytest inside this one forgets what it was the first to import, and half of it would be held twice then

INSTALLED = any(point.value == "brickprof.ratchet.plugin" for point in entry_points(group="pytest11"))
ARGUMENTS = ("-p", "no:cacheprovider", *(() if INSTALLED else ("-p", "brickprof.ratchet.plugin")))

TRAIN = """\
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
batches, spoiled = int(sys.argv[1]), BROKEN
inputs = torch.randn(8 * batches, 4)
if spoiled:
    inputs[8 * 5, 1] = float("nan")

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(inputs, torch.randn(8 * batches, 1)), batch_size=8)
for x, y in LOADED:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""


def script(*, broken: bool, loaded: str = "loader") -> str:
    return TRAIN.replace("BROKEN", str(broken)).replace("LOADED", loaded)


@functools.cache
def import_everything() -> None:
    """What pytester imports it forgets, and there are modules that can be imported only once."""
    assert Run.from_records([Event("run", 0, {})]).loss.empty
    str(diagnose(Run.from_records([Event("loss", 0, {"value": 1.0})])))
    registry.parse(b"yaml: 1", "")


def run_tests(pytester: pytest.Pytester, *words: str):
    """In this process, which is quick; not for tests that train in it."""
    import_everything()
    return pytester.runpytest_inprocess(*ARGUMENTS, *words)


def run_tests_apart(pytester: pytest.Pytester, *words: str):
    return pytester.runpytest_subprocess(*ARGUMENTS, *words, timeout=300)


# -- from end to end


@pytest.mark.slow
def test_a_finding_does_not_come_back(pytester, capsys):
    """A test of a broken training fails and leaves its run; the test that this run becomes fails on it, sees when it is
    exercised no more, and passes when the script is put right."""
    root = pytester.path
    (root / "pyproject.toml").touch()
    (root / "train.py").write_text(script(broken=True))
    pytester.makepyfile(test_once="def test_once(brickprof_run): brickprof_run('train.py', '12').assert_clean()")
    once = run_tests(pytester, "--brickprof-out", "kept")
    once.assert_outcomes(failed=1)
    once.stdout.fnmatch_lines(["*cause: the data itself holds values that are not finite*"])
    (run,) = (root / "kept").glob("test_once-*/train-*")

    capsys.readouterr()
    assert main(["ratchet", str(run)]) == 0
    assert "max(nonfinite_inputs) == 0" in capsys.readouterr().out
    test = root / "tests" / "test_ratchet_data_nonfinite.py"
    assert (root / "brickprof-contracts" / "data-nonfinite.yaml").exists()

    on_record = run_tests(pytester, str(test), "--brickprof-run", str(run))
    on_record.assert_outcomes(failed=1)
    on_record.stdout.fnmatch_lines(["*C-OWN-DATA-NONFINITE is broken: values in a batch that are not finite was 1 in*"])

    sound = Made()
    sound.healthy(12)  # and takes its data from no loader
    unwatched = Run.from_records(sound.records, Run.open(run).meta).save(root / "unwatched")
    no_more = run_tests(pytester, str(test), "--brickprof-run", str(unwatched))
    no_more.assert_outcomes(failed=1)
    no_more.stdout.fnmatch_lines([
        "*C-OWN-DATA-NONFINITE is NOT_EVALUATED, and that is no pass: values in a batch*was not measured*",
    ])  # fmt: skip

    (root / "train.py").write_text(script(broken=False))
    run_tests(pytester, str(test)).assert_outcomes(passed=1)


def test_a_training_in_the_tests_own_process(pytester):
    pytester.makepyfile(
        """
        import torch

        def train(watch, *, frozen=False, ends=6):
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
            model[0].requires_grad_(not frozen)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with watch(model, optimizer) as watched:
                assert not watched.passed  # asked too early: this is not what it comes to
                for step in range(6):
                    if step == ends:
                        raise KeyError("mine")
                    optimizer.zero_grad()
                    model(torch.randn(8, 4)).square().mean().backward()
                    optimizer.step()
            return watched

        def test_sound(brickprof_attach):
            watched = train(brickprof_attach)
            watched.assert_contract("C-TRAINSTABLE-001")
            watched.assert_reached(6)
            assert list(watched.run.loss["step"])

        def test_frozen(brickprof_attach):
            watched = train(brickprof_attach, frozen=True)
            watched.assert_contract("C-OWN-MOVES")

        def test_ended(brickprof_attach):
            train(brickprof_attach, ends=3)
        """
    )
    (pytester.path / "pyproject.toml").touch()
    folder = pytester.path / "brickprof-contracts"
    folder.mkdir()
    (folder / "moves.yaml").write_text(
        "metadata: {id: C-OWN-MOVES, version: 1.0.0, description: All moves.}\nmotivation: Because.\n"
        "obligations: [{id: all, kind: completeness, property: All moves., formal: 'last(weights_changed) >= 1'}]\n"
    )
    result = run_tests_apart(pytester, "--brickprof-out", "kept")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines_random([
        "*C-OWN-MOVES is broken: the share of parameters that changed was 0.5 in step*", "*KeyError: 'mine'*",
        "*- brickprof -*", "recorded in *test_ended-*",
    ])  # fmt: skip
    kept = sorted(folder.name.rpartition("-")[0] for folder in (pytester.path / "kept").iterdir())
    assert kept == ["test_ended", "test_frozen"]


# -- the fixture, with scripts that train nothing


def test_trainings_that_do_not_go_well(pytester):
    pytester.makepyfile(
        idle="print('hello')",
        fails="print('on the way'); raise SystemExit(3)",
        sleeps="import time; print('asleep', flush=True); time.sleep(600)",
        test_them="""
        import pytest

        def test_idle(brickprof_run):
            run = brickprof_run("idle.py", "x", env={"OMP_NUM_THREADS": "1"})
            run.assert_finished()
            assert (run.exit_code, run.steps, run.passed) == (0, 0, False)
            assert "hello" in run.output
            assert run.folder.name.startswith("idle-")
            assert run.run.meta.argv[-2:] == ("idle.py", "x")
            with pytest.raises(AssertionError, match="C-TRAINSTABLE-001 is VACUOUS, and that is no pass"):
                run.assert_contract("C-TRAINSTABLE-001")
            with pytest.raises(AssertionError, match="C-NONE-001 was not judged"):
                run.assert_contract("C-NONE-001")
            with pytest.raises(AssertionError, match="there was no training to judge"):
                run.assert_clean()

        def test_exit_code(brickprof_run):
            run = brickprof_run("fails.py")
            with pytest.raises(AssertionError, match="(?s)exit code 3.*[|] on the way"):
                run.assert_finished()
            assert run.passed

        def test_timeout(brickprof_run):
            brickprof_run("sleeps.py", timeout=3).assert_finished()

        def test_missing(brickprof_run):
            brickprof_run("idel.py")

        def test_elsewhere(brickprof_run):
            brickprof_run("idle.py", cwd="nowhere")
        """,
    )
    result = run_tests_apart(pytester, "--brickprof-out", "kept", "-n", "2")
    result.assert_outcomes(passed=1, failed=4)
    result.stdout.fnmatch_lines_random([
        "*where False = <Training VACUOUS: the script exited 3 (exited); recorded in *>.passed",
        "*- brickprof -*",
        "*brickprof.Broken: the training was stopped after 3 s.*",
        "*there is no file idel.py here. Did you mean idle.py?",
        "*nowhere is no folder to start in*",
    ])  # fmt: skip
    kept = sorted(folder.name.rpartition("-")[0] for folder in (pytester.path / "kept").iterdir())
    assert kept == ["test_elsewhere", "test_exit_code", "test_missing", "test_timeout"]
    (stopped,) = (pytester.path / "kept").glob("test_timeout-*/sleeps-*")
    assert f"recorded in {stopped}" in result.stdout.str()


def test_a_recorded_run_is_asked_instead(pytester, monkeypatch):
    pytester.makepyfile(
        idle="print('hello')",
        test_it="""
        def test_idle(brickprof_run):
            run = brickprof_run("idle.py")
            assert run.run.meta.script == "idle.py"
            run.assert_finished()

        def test_other(brickprof_run):
            brickprof_run("other.py")
        """,
    )
    meta = RunMeta("k3f9", "idle.py", ("python", "idle.py"))
    Run.from_records([Event("run", 0, {})], meta).save(pytester.path / "brickprof-runs" / "idle-k3f9")
    monkeypatch.setenv("BRICKPROF_TEST_RUN", "brickprof-runs")
    result = run_tests(pytester)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*is a run of idle.py, not of other.py."])
    result = run_tests(pytester, "--brickprof-run", "nowhere", "-k", "idle")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*--brickprof-run nowhere: *"])


# -- what it costs everybody else


def test_the_plugin_costs_nothing_to_load():
    program = (
        "import sys, pytest; before = set(sys.modules); import brickprof.ratchet.plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"brickprof", "brickprof.ratchet", "brickprof.ratchet.plugin"}


def test_other_tests_never_hear_of_it(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_plain(request):
            heavy = {"brickprof.ratchet.training", "brickprof.diagnosis", "brickprof.run", "torch", "pandas"}
            assert not heavy & set(sys.modules)
            assert not any("brickprof" in name for name in request.fixturenames)
        """
    )
    run_tests_apart(pytester).assert_outcomes(passed=1)


# -- what assertions say


def watched(*findings: Finding, verdict: Verdict = Verdict.FAIL, **contracts: Verdict) -> Watched:
    results = tuple(
        ContractResult(name.replace("_", "-"), told, "seen", "asked", "the reason") for name, told in contracts.items()
    )
    return Watched(Path("runs/x"), Diagnosis(verdict, {"steps": 7}, findings, results))


def found(severity: Severity = Severity.ERROR, **fields) -> Finding:
    about = {
        "id": "F1", "contract": "C-A-001", "verdict": Verdict.FAIL, "root_cause": "a-cause", "confidence": 0.5,
        "brick": "head", "granularity": "block", "scope": "local", "nature": "static", "first_step": 3,
        "detected_step": 3, "coordinates": {}, "symptom": "it broke", "whys": (Why("Why?", "So.", "", ("g:3",)),),
        "action": "Mend it.", **fields,
    }  # fmt: skip
    return Finding(severity=severity, **about)


def test_a_contract_that_holds_says_nothing():
    watched(C_A_001=Verdict.PASS).assert_contract("C-A-001")


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (Verdict.FAIL, "C-A-001 is broken: the reason."),
        (Verdict.VACUOUS, "C-A-001 is VACUOUS, and that is no pass: the reason."),
        (Verdict.NOT_EVALUATED, "C-A-001 is NOT_EVALUATED, and that is no pass: the reason."),
    ],
)
def test_a_contract_that_does_not_pass_says_why(verdict, says):
    with pytest.raises(Broken, match="(?s)^" + says.replace(".", r"\.")):
        watched(C_A_001=verdict).assert_contract("C-A-001")


def test_a_failure_carries_the_whys():
    with pytest.raises(Broken) as caught:
        watched(found(), C_A_001=Verdict.FAIL).assert_contract("C-A-001")
    assert str(caught.value).split("\n\n") == [
        "C-A-001 is broken: the reason.",
        "F1  it broke (C-A-001, step 3, head)\n    cause: a cause (a-cause, 50 %)\n"
        "    1  Why? So.  [g:3]\n    do: Mend it.",
        "recorded in runs/x",
    ]


def test_a_cause_that_is_back():
    watched(found()).assert_not_found("another-cause")
    watched(found(Severity.INFO)).assert_not_found("a-cause")
    with pytest.raises(Broken, match="a-cause is back, in step 3"):
        watched(found()).assert_not_found("a-cause")


def test_a_clean_run():
    watched(verdict=Verdict.PASS).assert_clean()
    watched(found(Severity.INFO), verdict=Verdict.PASS).assert_clean()
    watched(found(Severity.WARNING), verdict=Verdict.FAIL).assert_clean(warnings=False)
    with pytest.raises(Broken, match="the run has a finding"):
        watched(found(Severity.WARNING)).assert_clean()
    with pytest.raises(Broken, match="the run has 2 findings"):
        watched(found(), found()).assert_clean()
    with pytest.raises(Broken, match="broken: C-A-001"):
        watched(C_A_001=Verdict.FAIL).assert_clean()
    with pytest.raises(Broken, match="the run is VACUOUS"):
        watched(verdict=Verdict.VACUOUS).assert_clean()


def test_how_far_it_came():
    watched().assert_reached(7)
    with pytest.raises(Broken, match="made 7 steps, and what this test is about shows after 8"):
        watched().assert_reached(8)


def test_hostile_words_are_shown_and_not_obeyed():
    hostile = "\x1b[31m\u202e" + "x" * 10_000
    told = watched(found(symptom=hostile, brick=hostile, action=hostile), C_A_001=Verdict.FAIL)
    with pytest.raises(Broken) as caught:
        told.assert_contract("C-A-001")
    text = f"{caught.value}{told!r}"
    assert "\\x1b[31m" in text
    assert not {"\x1b", "\u202e"} & set(text)
    assert len(text) < 5_000
