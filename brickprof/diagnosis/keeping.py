"""A diagnosis that need not be made again: the one beside the run, where it would come out the same.

Enters: a run that was opened from its folder. Leaves: the ``Diagnosis`` in its ``diagnosis.json``, if that was made by
this very brickprof (its rules, its contracts, the plugins that are installed) of these very files; else None, and
``diagnosed`` makes a new one.

``judged.json`` says what a ``diagnosis.json`` was made of. Whoever writes a diagnosis of a run that is over writes both
(``saving.write(diagnosis, folder, run)``); without it a diagnosis is somebody's word, and is not taken.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brickprof import plugins
from brickprof.diagnosis.model import SCHEMA, Diagnosis, Finding
from brickprof.errors import BrickprofError
from brickprof.run.state import State, checksum, state

if TYPE_CHECKING:
    from brickprof.run import Run

DIAGNOSIS, JUDGED = "diagnosis.json", "judged.json"
_JUDGES = ("contracts", "diagnosis", "journal", "rules", "run")
"""The parts of the package that a verdict depends on."""
_WORDS = (".py", ".yaml")


def diagnosed(run: Run) -> Diagnosis:
    """What became of ``run``, on the terms it was started with: as it is stored beside it, or judged now."""
    from brickprof.diagnosis.doctor import diagnose

    return stored(run) or diagnose(run)


def stored(run: Run) -> Diagnosis | None:
    """The diagnosis in the folder of ``run``; None where there is none, or judging might say something else now."""
    if run.path is None:
        return None
    try:
        judged = json.loads((run.path / JUDGED).read_bytes())
        written = (run.path / DIAGNOSIS).read_bytes()
        if judged["diagnosis"] != _digest(written) or judged["judge"] != judge() or not _unchanged(run.path, judged):
            return None
        found = Diagnosis.from_dict(json.loads(written))
        if not all(map(_sound, found.findings)):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, BrickprofError):
        return None
    return replace(found, run={**found.run, "folder": str(run.path)})


def remember(folder: Path, of: State) -> None:
    """Writes what the ``diagnosis.json`` in ``folder`` was made of: ``of``, the state before anything was read."""
    fields = {
        "schema": SCHEMA,
        "diagnosis": _digest((folder / DIAGNOSIS).read_bytes()),
        "judge": judge(),
        "files": {name: [*told, checksum(folder / name)] for name, told in of.items()},
    }
    temporary = folder / f".{JUDGED}.{os.getpid()}"
    try:
        temporary.write_text(json.dumps(fields, indent=1) + "\n", "ascii")
        os.replace(temporary, folder / JUDGED)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@cache
def judge() -> str:
    """Who judges: a digest of the code and the contracts that a verdict depends on, and of the plugins beside them."""
    from importlib.metadata import entry_points

    package = Path(__file__).resolve().parents[1]
    found = sha256()
    for part in _JUDGES:
        for file in sorted(each for each in (package / part).rglob("*") if each.suffix in _WORDS):
            found.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    for point in sorted(entry_points(group=plugins.GROUP), key=lambda point: point.name):
        version = point.dist.version if point.dist is not None else ""
        found.update(f"{point.name}={point.value}@{version}\0".encode())
    return found.hexdigest()


def _unchanged(folder: Path, judged: dict[str, Any]) -> bool:
    """Whether the files are the ones that were judged: untouched, or copied with all that is in them."""
    now, then = state(folder), judged["files"]
    if now.keys() != then.keys() or any(now[name][0] != then[name][0] for name in now):
        return False
    touched = [name for name in now if now[name][1] != then[name][1]]
    return all(checksum(folder / name) == then[name][2] for name in touched)


def _sound(finding: Finding) -> bool:
    """Whether everything in it is what it should be: a folder may come from anywhere."""
    numbers = (finding.confidence, finding.first_step, finding.detected_step)
    words = [finding.id, finding.contract, finding.root_cause, finding.brick, finding.granularity, finding.scope,
             finding.nature, finding.symptom, finding.action, finding.next_experiment]  # fmt: skip
    words += [text for why in finding.whys for text in (why.question, why.finding, why.brick)]
    words += [text for out in finding.ruled_out for text in (out.root_cause, out.because)]
    counted = all(isinstance(number, (int, float)) for number in numbers) and isinstance(finding.first_step, int)
    return counted and isinstance(finding.coordinates, dict) and all(isinstance(text, str) for text in words)


def _digest(written: bytes) -> str:
    return sha256(written).hexdigest()
