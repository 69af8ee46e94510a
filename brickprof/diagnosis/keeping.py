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
from collections.abc import Iterator, Mapping
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
_PACKAGE = Path(__file__).resolve().parents[1]
_JUDGES = ("contracts", "diagnosis", "journal", "logs/reading", "rules", "run")
"""The parts of the package that a verdict depends on, beside the modules at its top (records, bricks, the pulse)."""
_WORDS = (".json", ".py", ".yaml")
_OF_RUN = {"id": str, "script": str, "steps": int, "ranks": int, "exit": dict, "curves": dict}
"""What reports count on in the ``run`` part, where it is there."""


def diagnosed(run: Run) -> Diagnosis:
    """What became of ``run``, on the terms it was started with: as it is stored beside it, or judged now."""
    known = stored(run)
    if known is not None:
        return known
    run.read_ahead()
    from brickprof.diagnosis.doctor import diagnose  # takes a while, in which the samples are on their way

    return diagnose(run)


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
        if not (_sound_run(found.run) and all(map(_sound, found.findings))):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, BrickprofError):
        return None
    return replace(found, run={**found.run, "folder": str(run.path)})


def remember(folder: Path, of: State, known: Mapping[str, tuple[int, int]] | None = None) -> None:
    """Writes what the ``diagnosis.json`` in ``folder`` was made of: ``of``, the state before anything was read.

    ``known`` are sizes and checksums of files that need not be read again.
    """
    sums = {name: crc for name, (size, crc) in (known or {}).items() if name in of and of[name][0] == size}
    fields = {
        "schema": SCHEMA,
        "diagnosis": _digest((folder / DIAGNOSIS).read_bytes()),
        "judge": judge(),
        "files": {name: [*told, sums[name] if name in sums else checksum(folder / name)] for name, told in of.items()},
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
    found = sha256()
    root = str(_PACKAGE)
    for path in sorted(_judging(root)):
        with open(path, "rb", buffering=0) as stream:
            found.update(path[len(root) + 1 :].replace(os.sep, "/").encode() + b"\0" + stream.readall() + b"\0")
    for point in plugins.points():
        version = point.dist.version if point.dist is not None else ""
        found.update(f"{point.name}={point.value}@{version}\0".encode())
        for file in _code(point.module):
            found.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()


def _judging(root: str) -> Iterator[str]:
    """Plain paths: there are some hundreds, and a look at a run that was judged already takes little else."""
    yield from (entry.path for entry in os.scandir(root) if entry.name.endswith(_WORDS))
    for part in _JUDGES:
        for folder, _, names in os.walk(os.path.join(root, part)):
            yield from (os.path.join(folder, name) for name in names if name.endswith(_WORDS))


def _code(module: str) -> list[Path]:
    """The file of a plugin and, in a package, those beside it: whoever writes one changes it without a new version.

    Nothing of it is imported for that.
    """
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    head, *inner = module.split(".")
    try:
        found, name = find_spec(head), head
        for part in inner:
            places, name = found and found.submodule_search_locations, f"{name}.{part}"
            found = PathFinder.find_spec(name, places) if places else None
    except (ImportError, ValueError):
        return []
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return []  # judging says that it cannot be loaded
    file = Path(found.origin)
    alone = not inner and found.submodule_search_locations is None
    return [file] if alone else sorted(file.parent.glob("*.py"))


def _unchanged(folder: Path, judged: dict[str, Any]) -> bool:
    """Whether the files are the ones that were judged: untouched, or copied with all that is in them."""
    now, then = state(folder), judged["files"]
    if now.keys() != then.keys() or any(now[name][0] != then[name][0] for name in now):
        return False
    touched = [name for name in now if now[name][1] != then[name][1]]
    return all(checksum(folder / name) == then[name][2] for name in touched)


def _sound_run(told: dict[str, Any]) -> bool:
    curves = told.get("curves")
    sound = all(type(told[name]) is kind for name, kind in _OF_RUN.items() if told.get(name) is not None)
    return sound and (not curves or all(isinstance(curve, dict) for curve in curves.values()))


def _sound(finding: Finding) -> bool:
    """Whether everything in it is what it should be: a folder may come from anywhere."""
    steps = (finding.first_step, finding.detected_step)
    words = [finding.id, finding.contract, finding.root_cause, finding.brick, finding.granularity, finding.scope,
             finding.nature, finding.symptom, finding.action, finding.next_experiment, finding.obligation]  # fmt: skip
    words += [text for why in finding.whys for text in (why.question, why.finding, why.brick)]
    words += [text for out in finding.ruled_out for text in (out.root_cause, out.because)]
    counted = isinstance(finding.confidence, (int, float)) and all(type(step) is int for step in steps)
    placed = all(type(place) is int for place in finding.coordinates.values())
    return counted and placed and all(isinstance(text, str) for text in words)


def _digest(written: bytes) -> str:
    return sha256(written).hexdigest()
