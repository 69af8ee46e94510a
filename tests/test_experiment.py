"""``brickprof experiment launch-blocking``: two real runs, and what they say together."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from brickprof.cli.experiment import _render
from brickprof.diagnosis.compare import Comparison, Difference
from brickprof.experiments.launch_blocking import AGAIN, BLOCKING, PLAIN, Trial, judge

SCRIPT = """
import os, sys, torch
if "--unseeded" not in sys.argv:
    torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
print("hello", sys.argv[1:])
for step in range(4):
    loss = model(torch.randn(8, 4)).square().mean()
    if step == 2 and "--broken" in sys.argv and not blocking:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def experiment(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "brickprof", "experiment", "launch-blocking", "-o", str(folder / "runs")]
    root = str(Path(__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": root, "CUDA_LAUNCH_BLOCKING": "1"}
    return subprocess.run(
        [*command, *words], capture_output=True, text=True, cwd=folder, env=environment, timeout=300, check=False
    )


def test_a_script_that_breaks_only_without_the_variable_is_told_with_its_step(tmp_path):
    done = experiment(tmp_path, "--json", "train.py", "--broken")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    (kept,) = (tmp_path / "runs").glob("*/experiment.json")
    assert json.loads(kept.read_text()) == told
    assert told["outcome"] == "differ" and "none was used" in told["text"]
    assert [trial["broken_at"] for trial in told["trials"]] == [2, None]
    assert told["comparison"]["first"]["step"] == 2 and told["comparison"]["first"]["what"] == "loss"
    assert "hello ['--broken']" in done.stderr


def test_without_a_gpu_equal_runs_decide_nothing(tmp_path):
    done = experiment(tmp_path, "train.py")
    assert done.returncode == 3, done.stderr
    assert "NOTHING TO JUDGE" in done.stdout and "orders nothing on a CPU" in done.stdout
    (kept,) = (tmp_path / "runs").glob("*/experiment.json")
    assert f"Result      {kept}" in done.stdout and "Then" not in done.stdout


def test_without_a_script_it_says_what_to_type(tmp_path):
    done = experiment(tmp_path)
    assert done.returncode == 2 and "brickprof experiment launch-blocking train.py" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("way", ["-m", "-c"])
def test_a_module_and_code_are_run_as_python_runs_them(tmp_path, way):
    words = ["-m", "train"] if way == "-m" else ["-c", SCRIPT]
    done = experiment(tmp_path, "--json", "--level", "light", *words, "--broken", "-o", "theirs", "--control")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert [trial["broken_at"] for trial in told["trials"]] == [2, None]
    assert done.stderr.count("hello ['--broken', '-o', 'theirs', '--control']") == 2, done.stderr


def test_a_module_without_a_name_is_wrong_usage(tmp_path):
    done = experiment(tmp_path, "-m", "")
    assert done.returncode == 2 and "-m needs the name of a module" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_script_that_is_not_there_is_wrong_usage(tmp_path):
    done = experiment(tmp_path, "trian.py")
    assert done.returncode == 2 and "Did you mean train.py?" in done.stderr


def test_without_a_gpu_a_script_without_a_seed_decides_nothing(tmp_path):
    done = experiment(tmp_path, "train.py", "--unseeded")
    assert done.returncode == 3, done.stderr
    assert "NOTHING TO JUDGE" in done.stdout and "No GPU was found" in done.stdout and "seed" in done.stdout
    assert "may read" not in done.stdout and "DIFFERENT" not in done.stdout, "what decides nothing is no picture"


def trial(name: str, *, code: int = 0, broken: int | None = None, on_gpu: bool = True) -> Trial:
    return Trial(name, code, f"runs/{name}", 10, broken, on_gpu=on_gpu)


def comparison(step: int | None) -> Comparison:
    first = None if step is None else Difference("loss", step, 0, "", "", 1.0, 2.0, ("event:1@0", "event:1@0"))
    return Comparison("aaaa", "bbbb", (10, 10), (1, 1), 0.0, (), first)


@pytest.mark.parametrize(
    ("trials", "between", "control", "outcome", "code"),
    [
        ((trial(PLAIN, code=134), trial(BLOCKING)), None, None, "order-matters", 1),
        ((trial(PLAIN, broken=3), trial(BLOCKING)), 3, None, "order-matters", 1),
        ((trial(PLAIN, broken=3), trial(BLOCKING), trial(AGAIN, broken=4)), 3, 3, "order-matters", 1),
        ((trial(PLAIN, broken=3), trial(BLOCKING), trial(AGAIN)), 3, 3, "not-repeatable", 3),
        ((trial(PLAIN), trial(BLOCKING)), 5, None, "differ", 1),
        ((trial(PLAIN), trial(BLOCKING), trial(AGAIN)), 5, None, "differ", 1),
        ((trial(PLAIN), trial(BLOCKING), trial(AGAIN)), 5, 5, "not-repeatable", 3),
        ((trial(PLAIN), trial(BLOCKING, code=1)), 5, None, "differ", 1),
        ((trial(PLAIN), trial(BLOCKING)), None, None, "same", 0),
        ((trial(PLAIN, broken=3), trial(BLOCKING, broken=3)), None, None, "same", 0),
    ],
)
def test_what_the_runs_say_together(trials, between, control, outcome, code):
    dead = any(each.exit_code == 134 for each in trials)
    found = judge(
        trials, None if dead else comparison(between), comparison(control) if len(trials) > 2 else None
    )  # fmt: skip
    assert (found.outcome, found.exit_code) == (outcome, code), found.text
    json.dumps(found.to_dict())


def rendered(found) -> str:
    said = io.StringIO()
    _render(found, "runs/experiment.json", ["train.py", "--name", "two words"], Console(file=said, width=200))
    return said.getvalue()


@pytest.mark.parametrize(
    ("trials", "between", "control", "leads_on"),
    [
        ((trial(PLAIN, broken=3), trial(BLOCKING)), 3, None, True),
        ((trial(PLAIN), trial(BLOCKING), trial(AGAIN)), 5, None, True),
        ((trial(PLAIN), trial(BLOCKING), trial(AGAIN)), 5, 5, False),
        ((trial(PLAIN), trial(BLOCKING)), 5, None, False),
        ((trial(PLAIN), trial(BLOCKING, code=1)), 5, None, False),
        ((trial(PLAIN), trial(BLOCKING)), None, None, False),
    ],
    ids=["fails as it is", "differs, repeats", "does not repeat", "not controlled", "fails blocking", "same"],
)
def test_what_a_missing_wait_does_leads_to_the_check_of_streams(trials, between, control, leads_on):
    found = judge(trials, comparison(between), comparison(control) if len(trials) > 2 else None)
    shown = rendered(found)
    assert ("brickprof run --sync-check train.py --name 'two words'    names both lines" in shown) == leads_on
    assert ("the runs part in step" in shown) == (found.outcome in ("differ", "order-matters")), shown


def test_runs_with_nothing_in_common_decide_nothing():
    found = judge((trial(PLAIN), trial(BLOCKING)), None)
    assert (found.outcome, found.exit_code) == ("nothing", 3)


def on_cpu(*codes: int) -> tuple[Trial, ...]:
    names = (PLAIN, BLOCKING, AGAIN)[: len(codes)]
    return tuple(trial(name, code=code, on_gpu=False) for name, code in zip(names, codes, strict=True))


@pytest.mark.parametrize(
    ("codes", "control", "outcome", "says"),
    [
        ((0, 0), None, "no-gpu", "does not repeat itself"),
        ((1, 1), None, "no-gpu", "does not repeat itself"),
        ((0, 0, 0), 5, "no-gpu", "does not repeat itself"),
        ((0, 0, 0), None, "no-gpu", "may read the variable"),
        ((1, 0, 0), 5, "no-gpu", "does not repeat itself"),
        ((1, 0), None, "differ", "none was used"),
        ((0, 1), None, "differ", "none was used"),
        ((1, 0, 1), None, "differ", "none was used"),
    ],
)
def test_without_a_gpu_only_a_run_that_fails_alone_is_a_difference(codes, control, outcome, says):
    found = judge(on_cpu(*codes), comparison(5), comparison(control) if len(codes) > 2 else None)
    assert (found.outcome, found.exit_code) == (outcome, 1 if outcome == "differ" else 3) and says in found.text


@pytest.mark.parametrize("broken", [None, 3])
def test_no_cause_is_named_that_was_not_tested(broken):
    runs = trial(PLAIN, broken=broken), trial(BLOCKING)
    alone = judge(runs, comparison(5)).text
    assert "--control" in alone and "does not repeat itself" in alone and "wait is missing" not in alone
    tested = judge((*runs, trial(AGAIN, broken=broken)), comparison(5), comparison(None)).text
    assert "--control" not in tested and "wait is missing" in tested if broken else "missing wait" in tested
    unknown = judge((*runs, trial(AGAIN, broken=broken)), comparison(5), None).text
    assert "--control" not in unknown
