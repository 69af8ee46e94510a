"""The logs of one run, judged.

Enters: logs, and the terms to judge on. Leaves: a ``Judged``: the diagnosis, and what the logs hold. Plain data, small,
the same wherever it was made.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from brickprof.analysis.files import MOST_FILES
from brickprof.errors import BrickprofError, OutputError
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis import Diagnosis
    from brickprof.logs import Log
    from brickprof.run import Run

JOURNAL = "brickprof"
"""The format of our own runs, in the table."""
_MOST_FILES_TYPED = 4


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for, in words that can be sent elsewhere."""

    format: str = ""
    pattern: str = ""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    suppress: Mapping[str, str] = field(default_factory=dict)
    out: str = ""
    """The folder that will hold the runs as journals; none are kept where it is empty."""
    max_files: int = MOST_FILES
    """How many files of one folder may be logs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that could not be read, or is no log."""

    path: str
    message: str
    hint: str = ""
    named: bool = True
    """It was named, and not only come upon in a folder."""
    worth_a_word: bool = True


@dataclass(frozen=True, slots=True)
class Judged:
    """One run."""

    name: str
    files: tuple[str, ...]
    format: str
    diagnosis: Diagnosis
    holds: tuple[dict[str, Any], ...] = ()
    """Each series: name, role, points, first_step, last_step, gaps, rank; ``file`` where there are several."""
    rows: int = 0
    unread: int = 0
    examples: tuple[tuple[int, str], ...] = ()
    damage: tuple[str, ...] = ()
    attempts: int = 1
    repeated: int = 0
    late: int = 0
    steps: int = 0
    """How many steps were taken, as the verdict says it: see ``diagnosis.log_facts``."""
    last_step: int = -1
    """The last step that was told, by the log's own count."""
    steps_by: str = "step"
    best: tuple[int, float] | None = None
    """Step and value of the lowest loss."""
    last: float | None = None
    """The last loss."""

    @property
    def trained(self) -> bool:
        """Whether there is anything of a training in it."""
        told = bool(self.diagnosis.findings) or "nccl-flight" in self.format
        return told or any(row["role"] not in ("other", "epoch") for row in self.holds)


def judge(told: Sequence[Log], name: str, options: Options) -> Judged:
    """The logs of one run."""
    from brickprof.contracts.terms import Terms
    from brickprof.diagnosis import diagnose
    from brickprof.logs.reading.to_run import to_run
    from brickprof.logs.reading.together import together

    logs = together(told)
    run = to_run(logs, name=name)
    run.meta = replace(
        run.meta,
        extra={**run.meta.extra, "thresholds": dict(options.thresholds), "suppress": dict(options.suppress)},
    )
    files = tuple(log.path for log in told)
    if options.out:
        run = kept(run, name, options.out)
    diagnosis = diagnose(run, Terms(options.thresholds, options.suppress))
    best, last = _losses(logs)
    judged = Judged(
        name, files, "+".join(dict.fromkeys(log.format for log in logs)), diagnosis, tuple(_holds(logs)),
        sum(log.rows for log in logs), sum(log.unread for log in logs),
        tuple((line, clean(text, limit=200)) for log in logs for line, text in log.examples)[:5],
        tuple(clean(text) for log in logs for text in log.damage)[:16],
        max((1 + len(log.attempts) for log in logs), default=1), sum(log.repeated for log in logs),
        sum(log.late for log in logs), _taken(diagnosis), max((log.last_step for log in logs), default=-1),
        logs[0].steps_by if logs else "step", best, last,
    )  # fmt: skip
    described = replace(judged, diagnosis=replace(diagnosis, run=about(judged, diagnosis.run, options)))
    if options.out:
        _write(described.diagnosis, run)
    return described


def about(judged: Judged, run: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """What diagnosis.json says of a run that comes from logs."""
    facts = {**run, "name": judged.name, "files": list(judged.files), "format": judged.format}
    if not run.get("folder"):
        facts["show"] = typed(judged.files, options)
    facts["log"] = {
        "series": list(judged.holds), "rows": judged.rows, "unread": judged.unread, "damage": list(judged.damage),
        "unread_examples": [list(example) for example in judged.examples], "attempts": judged.attempts,
        "repeated": judged.repeated, "late": judged.late, "last_step": judged.last_step, "steps_by": judged.steps_by,
        "best_loss": None if judged.best is None else judged.best[1],
        "best_step": None if judged.best is None else judged.best[0], "last_loss": judged.last,
    }  # fmt: skip
    return facts


def typed(files: Sequence[str], options: Options) -> str:
    """What to type after ``brickprof show`` to come back to this run."""
    if not files or "-" in files or options.pattern or len(files) > _MOST_FILES_TYPED:
        return ""
    return shlex.quote(",".join(files)) if all("," not in file for file in files) else ""


def kept(run: Run, name: str, out: str) -> Run:
    """``run`` as a journal in a folder of its own."""
    from brickprof.journal.folders import new_run_folder, run_id_of
    from brickprof.run import Run as Opened

    try:
        folder = new_run_folder(Path(out), name)
        folder.rmdir()  # save() makes it: it wants one that nothing is in
    except OSError as error:
        raise OutputError(f"cannot record to {clean(out)}: {error.strerror or error}.") from None
    run.meta = replace(run.meta, run_id=run_id_of(folder))
    return Opened.open(run.save(folder))


def _write(diagnosis: Diagnosis, run: Run) -> None:
    from brickprof.diagnosis.saving import write

    if run.path is not None:
        try:
            write(diagnosis, run.path)
        except OSError as error:
            raise OutputError(f"{run.path} cannot be written: {error.strerror or error}.") from None


def recorded(path: str, name: str, options: Options) -> Judged:
    """A run that brickprof recorded itself."""
    from brickprof.contracts.terms import Terms
    from brickprof.diagnosis import diagnose
    from brickprof.logs import journal

    run = journal.run(path)
    own = Terms.recorded(run.meta.extra)
    terms = Terms({**own.thresholds, **options.thresholds}, {**own.suppressed, **options.suppress}, own.own)
    diagnosis = diagnose(run, terms)
    losses = run.loss
    values, steps = losses["value"].to_numpy(dtype=float), losses["step"].to_numpy()
    finite = np.flatnonzero(np.isfinite(values))
    lowest = finite[np.argmin(values[finite])] if len(finite) else None
    holds = []
    if len(losses):
        holds.append({
            "name": "loss", "role": "loss", "points": len(losses), "first_step": int(losses["step"].min()),
            "last_step": int(losses["step"].max()), "gaps": 0, "rank": None,
        })  # fmt: skip
    judged = Judged(
        name, (path,), JOURNAL, diagnosis, tuple(holds), rows=len(losses),
        damage=tuple(clean(damage) for damage in run.damage), steps=_taken(diagnosis), last_step=max(run.steps - 1, -1),
        best=None if lowest is None else (int(steps[lowest]), float(values[lowest])),
        last=_number(values[-1]) if len(values) else None,
    )  # fmt: skip
    return replace(judged, diagnosis=replace(diagnosis, run=about(judged, diagnosis.run, options)))


def _taken(diagnosis: Diagnosis) -> int:
    told = diagnosis.run.get("steps")
    return told if isinstance(told, int) else 0


def _losses(logs: Sequence[Log]) -> tuple[tuple[int, float] | None, float | None]:
    """The lowest loss with its step, and the last."""
    found = [series.last_attempts() for log in logs if (series := log.loss) is not None and len(series)]
    lowest = []
    for series in found:
        finite = np.flatnonzero(np.isfinite(series.values))
        if len(finite):
            place = finite[np.argmin(series.values[finite])]
            lowest.append((float(series.values[place]), int(series.steps[place])))
    best = min(lowest, default=None)
    ends = max(found, key=lambda series: int(series.steps[-1]), default=None)
    return (best[1], best[0]) if best else None, _number(ends.values[-1]) if ends is not None else None


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if not math.isnan(number) else None


def _holds(logs: Sequence[Log]) -> list[dict[str, Any]]:
    rows = []
    for log in logs:
        for row in log.holds():
            told = {**row, "name": clean(row["name"], limit=120)}
            rows.append(told if len(logs) == 1 else {**told, "file": clean(log.path)})
    return rows[:2_000]


def problem(path: str, error: Exception, *, named: bool, sure: bool = True) -> Problem:
    """What went wrong with one file, for one line."""
    if isinstance(error, BrickprofError):
        return Problem(path, error.message, error.hint, named, named or sure)
    shown = clean(f"{type(error).__name__}: {error}", limit=300)
    return Problem(path, f"{clean(path)} could not be analysed: {shown}.", "", named)
