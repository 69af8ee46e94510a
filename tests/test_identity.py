"""Training is byte-identical with and without brickprof: weights, optimizer state, losses, random states.

Enters: tests/scripts/train_hash.py, run plainly and under each level, with a budget that lets capture do all
it can in every step. The controls, two ways of looking that do disturb, prove that the hashes see it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import brickprof

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tests" / "scripts"
TRAIN = str(SCRIPTS / "train_hash.py")
LEVELS = ("light", "standard", "deep")

ONE_PROCESS = (
    "by_hand", "eager1", "eager2", "accumulation", "checkpointing", "workers",
    "amp", "gan", "lbfgs", "sparse", "resumed",
)  # fmt: skip


def hashes(*command: str, modes: tuple[str, ...], cwd: Path) -> dict[str, str]:
    """Mode to fingerprint, as the script printed them."""
    done = subprocess.run(
        [sys.executable, *command, *modes],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line.split(" ", 2) for line in done.stdout.splitlines() if line.startswith("hash ")]
    return {mode: fingerprint for _, mode, fingerprint in lines}


def watched(level: str, out: Path, modes: tuple[str, ...], cwd: Path) -> dict[str, str]:
    options = ("--level", level, "--overhead", "100%", "-o", str(out))
    return hashes("-m", "brickprof", "run", *options, TRAIN, modes=modes, cwd=cwd)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modes", "models"),
    [
        pytest.param(
            ONE_PROCESS, {"GPT", "Regressor", "Painter", "Critic", "Curve", "Follower", "Bag", "Voter"}, id="one"
        ),
        pytest.param(("compiled1", "compiled2"), {"Residual"}, id="compiled"),
        pytest.param(("ddp",), {"GPT"}, id="ddp"),
    ],
)
def test_training_is_byte_identical_at_every_level(modes, models, tmp_path):
    plain = hashes(TRAIN, modes=modes, cwd=tmp_path)
    again = hashes(TRAIN, modes=modes, cwd=tmp_path)
    assert plain == again, "the script itself is not reproducible here: nothing can be concluded"
    assert len(plain) == (2 if modes == ("ddp",) else len(modes))
    for level in LEVELS:
        out = tmp_path / level
        assert watched(level, out, modes, tmp_path) == plain, f"level {level} changed the training"
        assert_something_was_captured(out, level, models, ranks=2 if modes == ("ddp",) else 1)


def assert_something_was_captured(out: Path, level: str, models: set[str], ranks: int) -> None:
    """An identical hash means little if nobody was looking."""
    run = brickprof.load(next(out.iterdir()))
    assert len(run.ranks) == ranks
    assert len(run.loss) >= 6 * ranks
    if level != "light":
        looked_at = set(run.samples.loc[run.samples.role == "grad"].model)
        assert looked_at >= models, f"no gradient was looked at in {models - looked_at}"


@pytest.mark.slow
def test_the_hashes_see_a_careless_profiler(tmp_path):
    modes = ("eager1",)
    plain = hashes(TRAIN, modes=modes, cwd=tmp_path)
    differs = {}
    for way in ("look", "rng", "inplace"):
        meddled = hashes(str(SCRIPTS / "meddle.py"), way, TRAIN, modes=modes, cwd=tmp_path)
        differs[way] = parts(meddled["eager1"])["weights"] != parts(plain["eager1"])["weights"]
    assert differs == {"look": False, "rng": True, "inplace": True}


def parts(fingerprint: str) -> dict[str, str]:
    return dict(part.split("=") for part in fingerprint.split())
