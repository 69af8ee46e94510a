"""The faults and controls that brickprof is measured on, and what is true of each.

Enters: ``faults/*.py`` and ``controls/*.py``, read and never imported. Leaves: a ``Specimen`` each: its script, and
its ground truth.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from brickprof.errors import ConfigurationError, UsageError

HERE = Path(__file__).parent
NEEDS = ("cpu", "gpu", "triton")


@dataclass(frozen=True, slots=True)
class Specimen:
    """One script of the zoo. A control has no contracts and no root causes: nothing may be found in it."""

    id: str
    path: Path
    title: str
    family: str
    kind: str = "control"
    row: int | None = None
    contracts: tuple[str, ...] = ()
    root_causes: tuple[str, ...] = ()
    bricks: tuple[str, ...] = ()
    first_step: int | None = None
    needs: str = "cpu"
    gpu: bool = False
    """It needs no GPU, and is worth a run on one: it shows there differently."""
    run: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Of a reference fault: ``field=value`` texts for its configuration."""
    files: tuple[tuple[str, str], ...] = ()
    trap: str = ""
    """Of a control: what in it might wrongly alarm."""
    crashes: bool = False
    """It may end with an error of its own. Faults of a process or between ranks may in any case."""
    alone: bool = False
    """It takes all of something that the others need as well, such as the memory of a card."""

    @property
    def healthy(self) -> bool:
        return not self.root_causes

    @property
    def for_gpu(self) -> bool:
        return self.gpu or self.needs != "cpu"

    @property
    def may_crash(self) -> bool:
        return self.crashes or self.kind in ("process", "distributed")


@cache
def faults() -> dict[str, Specimen]:
    return _folder(HERE / "faults")


@cache
def controls() -> dict[str, Specimen]:
    return _folder(HERE / "controls")


def find(identifier: str) -> Specimen:
    known = faults() | controls()
    if identifier in known:
        return known[identifier]
    close = get_close_matches(identifier, known, n=1, cutoff=0.4)
    hint = f"Did you mean {close[0]}?" if close else "`brickprof zoo --list` names all of them."
    raise UsageError(f"There is no fault {identifier!r}.", hint)


def elsewhere(folder: Path) -> dict[str, Specimen]:
    """Specimens that somebody wrote: scripts with a TRUTH, faults and controls in one folder."""
    found = _folder(folder) if folder.is_dir() else {}
    if not found:
        raise UsageError(f"{folder} holds no specimens.", "A specimen is a script NAME.py with a TRUTH at its top.")
    return found


def _folder(folder: Path) -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    for path in sorted(folder.glob("*.py")):
        if path.stem.startswith("_"):
            continue
        specimen = read(path)
        if specimen.id in found:
            raise ConfigurationError(f"{path.name} and {found[specimen.id].path.name} are both called {specimen.id}.")
        found[specimen.id] = specimen
    return found


def read(path: Path) -> Specimen:
    """The ground truth at the top of a script, without running a line of it."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(name, ast.Name) and name.id == "TRUTH" for name in node.targets
        ):
            return _specimen(path, ast.literal_eval(node.value))
    raise ConfigurationError(f"{path.name} has no TRUTH.", "A specimen says at its top what is true of it.")


def _specimen(path: Path, truth: dict[str, Any]) -> Specimen:
    known: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in truth.items()}
    known["files"] = tuple(dict(known.get("files", {})).items())
    try:
        specimen = Specimen(path=path, **known)
    except TypeError as error:
        raise ConfigurationError(f"TRUTH of {path.name}: {error}.") from None
    if specimen.needs not in NEEDS:
        raise ConfigurationError(f"TRUTH of {path.name} needs {specimen.needs!r}; known: {', '.join(NEEDS)}.")
    return specimen
