"""Every example runs under brickprof as it stands: healthy ones pass in silence, the broken one is explained.

Enters: examples/*.py, unmodified. What the script printed about itself is what brickprof is held against.
"""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import brickprof

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
WATCHED_FROM_OUTSIDE = sorted(
    file.stem for file in EXAMPLES.glob("*.py") if file.stem not in ("broken_gpt", "attach_trainer")
)
STEPS = {
    "accumulation": 80, "amp": 150, "checkpointing": 100, "cnn": 120, "compiled": 150, "ddp": 80,
    "frozen_backbone": 160, "fsdp": 60, "gan": 300, "gpt": 120, "lbfgs": 8, "lstm_manual_sgd": 150,
    "rl": 80, "sparse_embedding": 200,
}  # fmt: skip
"""Updates that each script makes; one of a GAN's steps is a round of both optimizers."""
BRICKS = {
    "gpt": {"blocks.0", "blocks.2", "embed", "head"},
    "cnn": {"stem", "body", "top", "classify"},
    "gan": {"Generator.place", "Discriminator.judge"},
    "frozen_backbone": {"head"},
    "lstm_manual_sgd": {"lstm", "read"},
    "ddp": {"enter", "leave"},
    "checkpointing": {"blocks.0", "blocks.3"},
}
"""Names a reader of the script would look for."""


@dataclass(frozen=True)
class Outcome:
    code: int
    printed: str
    diagnosis: dict
    folder: Path


Watched = Callable[..., Outcome]


def execute(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=cwd, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def watch(example: str, cwd: Path, *options: str) -> Outcome:
    script = str(EXAMPLES / f"{example}.py")
    done = execute("-m", "brickprof", "run", *options, "-o", "out", script, cwd=cwd)
    folders = list((cwd / "out").iterdir())
    assert len(folders) == 1, done.stderr
    diagnosis = json.loads((folders[0] / "diagnosis.json").read_text())
    return Outcome(done.returncode, done.stdout, diagnosis, folders[0])


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Runs an example under brickprof, once for each set of options that the tests here ask for."""

    @functools.cache
    def once(example: str, *options: str) -> Outcome:
        return watch(example, tmp_path_factory.mktemp(example), *options)

    return once


def complaints(diagnosis: dict) -> list[dict]:
    return [finding for finding in diagnosis["findings"] if finding["severity"] in ("error", "warning")]


@pytest.mark.slow
@pytest.mark.parametrize("example", WATCHED_FROM_OUTSIDE)
def test_a_healthy_example_passes_without_a_finding(example, watched):
    outcome = watched(example)
    assert outcome.code == 0
    assert complaints(outcome.diagnosis) == []
    assert outcome.diagnosis["verdict"] == "PASS"
    judged = {contract["id"]: contract["verdict"] for contract in outcome.diagnosis["contracts"]}
    assert judged["C-TRAINSTABLE-001"] == judged["C-GRADFLOW-001"] == "PASS"

    run = brickprof.load(outcome.folder)
    assert run.steps == STEPS[example] == outcome.diagnosis["run"]["steps"]
    assert len(run.loss) > 0
    assert {"nan", "inf"}.isdisjoint(str(value) for value in run.loss.value)
    looked_at = set(run.samples.loc[run.samples.role == "grad"].brick)
    assert looked_at, "no gradient was ever looked at"
    missing = {name for name in BRICKS.get(example, ()) if not any(seen.startswith(name) for seen in looked_at)}
    assert not missing, f"{missing} not among {sorted(looked_at)}"


def printed_losses(text: str, pattern: str = r"step\s+(\d+)\s+loss ([-+.\w]+)") -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(pattern, text)}


def only_loss(losses: list[float]) -> float:
    (loss,) = losses
    return loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "pattern", "of_a_step"),
    [
        ("gpt", r"step\s+(\d+)\s+loss (\S+)", only_loss),
        ("amp", r"step\s+(\d+)\s+loss (\S+)", only_loss),
        ("lstm_manual_sgd", r"step\s+(\d+)\s+loss (\S+)", only_loss),
        ("gan", r"step\s+(\d+)\s+judge (\S+)", lambda losses: losses[0]),
        ("gan", r"step\s+(\d+)\s+judge \S+\s+paint (\S+)", lambda losses: losses[1]),
        ("accumulation", r"update\s+(\d+)\s+loss (\S+)", sum),
        ("lbfgs", r"step\s+(\d+)\s+loss (\S+)", lambda losses: losses[0]),
    ],
)
def test_the_losses_are_the_ones_the_script_printed(
    example: str, pattern: str, of_a_step: Callable[[list[float]], float], watched: Watched
):
    """With room for it in the budget, every loss is there, under the script's own step number."""
    outcome = watched(example, "--overhead", "100%")
    printed = printed_losses(outcome.printed, pattern)
    assert len(printed) >= 8
    by_step = brickprof.load(outcome.folder).loss.groupby("step").value.apply(list)
    recorded = {step: of_a_step(by_step[step]) for step in printed}
    assert recorded == pytest.approx(printed, abs=2e-6)


@pytest.mark.slow
def test_the_scaler_of_the_amp_example_skips_and_that_is_no_fault(watched):
    outcome = watched("amp", "--overhead", "100%")
    events = brickprof.load(outcome.folder).events
    skipped = sum(bool(fields.get("skipped")) for fields in events[events.kind == "scaler"].fields)
    assert skipped == int(re.findall(r"skipped (\d+)", outcome.printed)[-1]) > 0
    assert outcome.diagnosis["verdict"] == "PASS"


@pytest.mark.slow
def test_each_rank_of_the_ddp_example_has_its_folder(watched):
    outcome = watched("ddp")
    run = brickprof.load(outcome.folder)
    assert sorted(folder.name for folder in outcome.folder.glob("rank*")) == ["rank00000", "rank00001"]
    assert set(run.loss["rank"]) == {0, 1}


@pytest.mark.slow
def test_the_broken_example_fails_where_its_own_output_says(watched):
    outcome = watched("broken_gpt")
    lines = re.findall(r"step\s+(\d+)\s+loss (\S+)\s+steepest (\S+)", outcome.printed)
    first = next(int(step) for step, *values in lines if {"nan", "inf"} & set(values))

    assert outcome.code == 0, "the script itself went on to the end"
    assert outcome.diagnosis["verdict"] == "FAIL"
    top = outcome.diagnosis["findings"][0]
    assert top["contract"] == "C-TRAINSTABLE-001"
    assert top["severity"] == "error"
    assert top["first_step"] == first
    assert top["brick"]
    assert 1 <= len(top["whys"]) <= 5


@pytest.mark.slow
def test_attach_in_a_trainer_of_ones_own(tmp_path):
    done = execute(str(EXAMPLES / "attach_trainer.py"), "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "PASS" in done.stdout
    (folder,) = (tmp_path / "out").iterdir()
    run = brickprof.load(folder)
    by_step = run.loss.groupby("step").value.first()
    printed = printed_losses(done.stdout)
    common = [step for step in printed if step in by_step.index]
    assert 0 in common
    assert [by_step[step] for step in common] == pytest.approx([printed[step] for step in common], abs=2e-6)


def test_the_examples_do_not_know_brickprof():
    """All but the one that shows how to attach."""
    importing = {
        file.stem
        for file in EXAMPLES.glob("*.py")
        if re.search(r"^\s*(import|from) brickprof", file.read_text(), re.MULTILINE)
    }
    assert importing == {"attach_trainer"}


def test_the_readme_of_the_examples_names_them_all():
    listed = set(re.findall(r"\]\((\w+)\.py\)", (EXAMPLES / "README.md").read_text()))
    assert listed == {file.stem for file in EXAMPLES.glob("*.py")}
