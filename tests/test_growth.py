"""Long runs stay small: memory of the training process, and the journal under its cap.

Enters: tests/scripts/grow.py, 20,000 steps of a very small model that records its own resident memory. Both
what our modules cost at the start and what is added over the steps are held against the plain run.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import brickprof

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = str(ROOT / "tests" / "scripts" / "grow.py")
STEPS = 20_000
MEGABYTE = 2**20


def train(*command: str, steps: int, cwd: Path) -> dict:
    done = subprocess.run(
        [sys.executable, *command, SCRIPT, str(steps)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=cwd, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[0])


def growth(memory: dict) -> float:
    """Megabytes added after the first tenth of the steps."""
    marks = list(memory["at"].values())
    return (marks[-1] - marks[1]) / MEGABYTE


def journal_bytes(run: Path) -> int:
    return sum(file.stat().st_size for file in (run / "rank00000").iterdir())


@pytest.mark.slow
def test_20_000_steps_add_less_than_50_megabytes_to_a_plain_run(tmp_path, record_property):
    plain = train(steps=STEPS, cwd=tmp_path)
    ours = train("-m", "brickprof", "run", "-o", "out", steps=STEPS, cwd=tmp_path)

    at_start = (ours["imported"] - plain["imported"]) / MEGABYTE
    in_all = (list(ours["at"].values())[-1] - list(plain["at"].values())[-1]) / MEGABYTE
    over_steps = growth(ours) - growth(plain)
    record_property("megabytes", {"start": at_start, "over_steps": over_steps, "in_all": in_all})
    print(f"modules {at_start:+.1f} MB, 18,000 steps {over_steps:+.1f} MB, in all {in_all:+.1f} MB")
    assert in_all < 50
    assert over_steps < 20

    folder = next((tmp_path / "out").iterdir())
    run = brickprof.load(folder)
    assert run.steps == STEPS
    assert journal_bytes(folder) < 256 * MEGABYTE
    assert ours["loss"] == plain["loss"]


@pytest.mark.slow
def test_a_small_cap_holds_and_what_was_dropped_is_counted(tmp_path):
    """Everything in every step, 4 MB of room: old healthy history gives way, and the run still opens."""
    cap = 4_000_000
    options = ("--level", "deep", "--overhead", "100%", "--max-size", "4MB", "-o", "out")
    train("-m", "brickprof", "run", *options, steps=4000, cwd=tmp_path)

    folder = next((tmp_path / "out").iterdir())
    assert journal_bytes(folder) <= cap
    run = brickprof.load(folder)
    assert run.steps == 4000
    assert run.damage == []
    dropped = run.events[run.events.kind == "dropped"]
    assert len(dropped) > 0
    assert run.loss.step.min() == 0, "the beginning is thinned, not cut off"
    assert run.loss.step.max() == 3999, "the end is there"
    assert json.loads((folder / "diagnosis.json").read_text())["verdict"] == "PASS"
