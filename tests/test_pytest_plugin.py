"""Trainings as tests: the fixtures in a real pytest, and a finding that is ratcheted from end to end."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.diagnosis import Diagnosis, Finding, Why
from brickprof.ratchet.training import Broken, Watched

pytest_plugins = ["pytester"]

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


def run_tests(pytester: pytest.Pytester, *words: str):
    return pytester.runpytest_subprocess(*ARGUMENTS, *words, timeout=300)


def brickprof(pytester: pytest.Pytester, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "brickprof", *words], cwd=pytester.path, capture_output=True, text=True, check=False
    )


# -- from end to end


@pytest.mark.slow
def test_a_finding_does_not_come_back(pytester):
    """The test fails on the broken script, passes on the fixed one, and sees when it is exercised no more."""
    root = pytester.path
    (root / "pyproject.toml").touch()
    (root / "train.py").write_text(script(broken=True))
    assert brickprof(pytester, "run", "train.py", "12").returncode == 0
    (run,) = (root / "brickprof-runs").iterdir()
    made = brickprof(pytester, "ratchet", str(run))
    assert made.returncode == 0, made.stderr
    assert "max(nonfinite_inputs) == 0" in made.stdout
    test = root / "tests" / "test_ratchet_data_nonfinite.py"
    assert (root / "brickprof-contracts" / "data-nonfinite.yaml").exists()

    on_record = run_tests(pytester, str(test), "--brickprof-run", str(run))
    on_record.assert_outcomes(failed=1)
    on_record.stdout.fnmatch_lines(["*C-OWN-DATA-NONFINITE is broken: values in a batch that are not finite was 1 in*"])

    # The same test three times: the script as it was, put right, and one that no longer takes its data from a loader.
    (root / "fixed.py").write_text(script(broken=False))
    (root / "unwatched.py").write_text(script(broken=False, loaded="[(inputs, torch.randn(len(inputs), 1))] * batches"))
    for name in ("fixed", "unwatched"):
        copy = test.read_text().replace('"train.py"', f'"{name}.py"').replace("def test_", f"def test_{name}_")
        (root / "tests" / f"test_{name}.py").write_text(copy)
    again = run_tests(pytester, "tests", "-v")
    again.assert_outcomes(failed=2, passed=1)
    again.stdout.fnmatch_lines_random([
        "*test_fixed.py::test_fixed_* PASSED*",
        "*test_ratchet_data_nonfinite.py::test_data_nonfinite_* FAILED*",
        "*cause: the data itself holds values that are not finite*",
        "*C-OWN-DATA-NONFINITE is NOT_EVALUATED, and that is no pass: values in a batch*was not measured*",
    ])  # fmt: skip


def test_a_training_in_the_tests_own_process(pytester):
    pytester.makepyfile(
        """
        import torch

        def train(watch, *, frozen):
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
            model[0].requires_grad_(not frozen)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with watch(model, optimizer) as watched:
                for _ in range(6):
                    optimizer.zero_grad()
                    model(torch.randn(8, 4)).square().mean().backward()
                    optimizer.step()
            return watched

        def test_sound(brickprof_attach):
            watched = train(brickprof_attach, frozen=False)
            watched.assert_contract("C-TRAINSTABLE-001")
            watched.assert_reached(6)
            assert list(watched.run.loss["step"])

        def test_frozen(brickprof_attach):
            watched = train(brickprof_attach, frozen=True)
            watched.assert_contract("C-OWN-MOVES")
        """
    )
    (pytester.path / "pyproject.toml").touch()
    folder = pytester.path / "brickprof-contracts"
    folder.mkdir()
    (folder / "moves.yaml").write_text(
        "metadata: {id: C-OWN-MOVES, version: 1.0.0, description: All moves.}\nmotivation: Because.\n"
        "obligations: [{id: all, kind: completeness, property: All moves., formal: 'last(weights_changed) >= 1'}]\n"
    )
    result = run_tests(pytester)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*C-OWN-MOVES is broken: the share of parameters that changed was 0.5 in step*"])


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
    result = run_tests(pytester, "--brickprof-out", "kept", "-n", "2")
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
    assert brickprof(pytester, "run", "idle.py").returncode == 0
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
    run_tests(pytester).assert_outcomes(passed=1)


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
