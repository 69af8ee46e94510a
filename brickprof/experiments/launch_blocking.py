"""Does the order of launches matter? A script with and without ``CUDA_LAUNCH_BLOCKING=1``.

Enters: a command for ``brickprof run`` and a folder. Leaves: a ``Finding``: how each run ended, where they part, and
what that says. With the variable every launch waits for the device: what lacks a wait goes wrong only without it.

Two runs of a script that is not repeatable part anyway. A third one, plain like the first (``control``), tells that;
without it no cause is named.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import brickprof
from brickprof.diagnosis.compare import Comparison, compare
from brickprof.errors import BrickprofError, NothingToJudge
from brickprof.records import Event
from brickprof.rules.device import has_device
from brickprof.rules.story import Story
from brickprof.run import Run

VARIABLE = "CUDA_LAUNCH_BLOCKING"
PLAIN, BLOCKING, AGAIN = "plain", "blocking", "plain again"
_ROOT = str(Path(brickprof.__file__).resolve().parent.parent)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run."""

    name: str
    exit_code: int
    folder: str = ""
    steps: int = 0
    broken_at: int | None = None
    """The first step with a loss that is not finite."""
    on_gpu: bool = False

    @property
    def failed(self) -> bool:
        return self.exit_code != 0 or self.broken_at is not None

    @property
    def told(self) -> str:
        ended = "ended well" if not self.exit_code else f"ended with {self.exit_code}"
        losses = "every loss finite" if self.broken_at is None else f"the loss not finite from step {self.broken_at:,}"
        return f"{self.steps:,} steps, {ended}, {losses if self.steps else 'no losses'}"


@dataclass(frozen=True, slots=True)
class Finding:
    outcome: str
    """order-matters | differ | not-repeatable | same | no-gpu | nothing"""
    text: str
    trials: tuple[Trial, ...]
    comparison: Comparison | None = None
    control: Comparison | None = None

    @property
    def exit_code(self) -> int:
        return {"same": 0, "order-matters": 1, "differ": 1}.get(self.outcome, NothingToJudge.exit_code)

    @property
    def decided(self) -> bool:
        """Whether what the runs differ in says something."""
        return self.outcome in ("order-matters", "differ")

    @property
    def lacks_a_wait(self) -> bool:
        """Whether that is what they show."""
        repeats = self.control is not None and self.control.same and not self.trials[1].failed
        on_gpu = any(trial.on_gpu for trial in self.trials)
        return on_gpu and (self.outcome == "order-matters" or (self.outcome == "differ" and repeats))

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1, "experiment": "launch-blocking", "outcome": self.outcome, "text": self.text,
            "trials": [asdict(trial) for trial in self.trials],
            "comparison": self.comparison.to_dict() if self.comparison else None,
            "control": self.control.to_dict() if self.control else None,
        }  # fmt: skip


def conduct(command: Sequence[str], out: Path, *, tolerance: float = 0.0, control: bool = False) -> Finding:
    """Runs ``command`` (what follows ``brickprof run``) with and without the variable."""
    names = (PLAIN, BLOCKING, AGAIN) if control else (PLAIN, BLOCKING)
    runs = {name: _run(name, command, out / name.replace(" ", "-")) for name in names}
    trials = tuple(trial for trial, _ in runs.values())
    between = _compared(runs[PLAIN][1], runs[BLOCKING][1], tolerance)
    repeated = _compared(runs[PLAIN][1], runs[AGAIN][1], tolerance) if control else None
    return judge(trials, between, repeated)


def judge(trials: tuple[Trial, ...], between: Comparison | None, repeated: Comparison | None = None) -> Finding:
    """What the runs say together; the first is plain, the second one blocks, the third, if any, is plain again."""
    plain, blocking = trials[:2]
    controlled = len(trials) > 2
    outcome, text = _outcome(plain, blocking, between)
    if controlled and _wavers(outcome, trials[2], repeated):
        outcome, text = "not-repeatable", _UNREPEATED[outcome]
    if not any(trial.on_gpu for trial in trials):
        one_failed = plain.failed != blocking.failed
        outcome, text = _without_gpu(outcome, one_failed=one_failed, repeats=repeated is not None and repeated.same)
    elif outcome in ("order-matters", "differ"):
        text += _controlled(outcome, blocking, repeated) if controlled else _UNTESTED
    return Finding(outcome, text, trials, between, repeated)


def _outcome(plain: Trial, blocking: Trial, between: Comparison | None) -> tuple[str, str]:
    if plain.failed and not blocking.failed:
        return "order-matters", "It fails as it is and not when every launch waits."
    if blocking.failed and not plain.failed:
        return "differ", "It fails only when every launch waits, which no missing wait explains."
    if between is None:
        return "nothing", "The two runs have nothing in common that could be compared."
    if between.same:
        both = " Both fail alike: a missing wait is not the reason." if plain.failed else ""
        return "same", f"The two runs are equal: nothing shows that the order of launches matters.{both}"
    first = between.first
    where = f" in step {first.step:,}: the {first.what}" if first is not None else ""
    return "differ", f"The two runs part{where}."


_UNREPEATED = {
    "order-matters": "The plain run failed once and not again: no order is shown by that.",
    "differ": "Two plain runs part as well: the script is not repeatable by itself.",
}
_UNTESTED = " --control, a second plain run, tells a script that does not repeat itself from one that lacks a wait."


def _wavers(outcome: str, again: Trial, repeated: Comparison | None) -> bool:
    """Whether the second plain run takes back what the first one shows."""
    if outcome == "order-matters":
        return not again.failed
    return outcome == "differ" and repeated is not None and not repeated.same


def _controlled(outcome: str, blocking: Trial, repeated: Comparison | None) -> str:
    """What the second plain run adds to a difference that it does not take back."""
    if outcome == "order-matters":
        return " A second plain run fails too: a wait is missing somewhere."
    if repeated is None:
        return " The second plain run has nothing that could be compared: why they part is not known."
    return " Two plain runs are equal." + ("" if blocking.failed else " A missing wait does that.")


def _without_gpu(outcome: str, *, one_failed: bool, repeats: bool) -> tuple[str, str]:
    """Numbers that merely differ decide nothing there; a run that fails where the other does not is worth a look."""
    if one_failed and outcome != "not-repeatable":
        return "differ", f"The two runs differ, and not by a GPU: none was used. The script itself may read {VARIABLE}."
    text = f"No GPU was found in these runs, and {VARIABLE} orders nothing on a CPU: this decides nothing."
    if outcome not in ("differ", "not-repeatable"):
        return "no-gpu", text
    if repeats:
        return (
            "no-gpu",
            f"{text} Two plain runs are equal and this one is not: the script itself may read the variable.",
        )
    return "no-gpu", f"{text} The script does not repeat itself: a seed (torch.manual_seed) would help."


# -- one run


def _run(name: str, command: Sequence[str], out: Path) -> tuple[Trial, Run | None]:
    out.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "brickprof", "run", "-o", str(out), "--no-live", *command]
    done = subprocess.run(words, env=_environment(blocks=name == BLOCKING), stdout=sys.stderr, check=False)
    folders = sorted((each for each in out.iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime)
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    if not folders:
        return Trial(name, code), None
    try:
        run = Run.open(folders[-1])
        return _trial(name, code, folders[-1], run), run
    except BrickprofError:
        return Trial(name, code, str(folders[-1])), None


def _environment(*, blocks: bool) -> dict[str, str]:
    paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {key: value for key, value in os.environ.items() if key != VARIABLE}
    return given | {"PYTHONPATH": os.pathsep.join(paths)} | ({VARIABLE: "1"} if blocks else {})


def _trial(name: str, code: int, folder: Path, run: Run) -> Trial:
    broken = [
        event.step
        for event in run.records()
        if isinstance(event, Event) and event.kind == "loss" and not _finite(event.fields.get("value"))
    ]
    return Trial(name, code, str(folder), run.steps, min(broken, default=None), has_device(Story.of(run)))


def _finite(value: Any) -> bool:
    try:
        return value is None or math.isfinite(float(value))
    except (TypeError, ValueError):
        return True


def _compared(one: Run | None, other: Run | None, tolerance: float) -> Comparison | None:
    if one is None or other is None:
        return None
    try:
        return compare(one, other, tolerance)
    except NothingToJudge:
        return None
