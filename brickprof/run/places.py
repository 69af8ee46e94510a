"""Where the run is that somebody means.

Enters: what was typed: a run's folder, a folder that holds one, a file inside one, or the last letters of a
run's name. Leaves: the run's folder, or an error that says what was found there instead.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from brickprof.errors import NotARun
from brickprof.journal import META, PROCESS, rank_folders
from brickprof.text import clean

DEFAULT_HOME = "brickprof-runs"
_MOST_SHOWN = 5


def locate(typed: str | Path) -> Path:
    path = Path(typed)
    try:
        return _inside(path) if path.exists() else _by_name(path)
    except (OSError, ValueError) as error:  # no permission, a name too long, a zero byte
        raise NotARun(f"{clean(typed)} cannot be opened: {clean(error)}.") from None


def is_run(folder: Path) -> bool:
    return (folder / META).is_file() or (folder / PROCESS).is_file() or bool(rank_folders(folder))


def runs_in(folder: Path) -> list[Path]:
    """The runs that lie directly in ``folder``, newest first."""
    if not folder.is_dir():
        return []
    found = [(child, _changed(child)) for child in folder.iterdir() if child.is_dir() and is_run(child)]
    return [run for run, _ in sorted(found, key=lambda one: one[1], reverse=True)]


def _changed(folder: Path) -> float:
    """When something last came into it; the beginning of time for one that is gone meanwhile."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _inside(path: Path) -> Path:
    if path.is_file():
        for folder in path.absolute().parents[:2]:
            if is_run(folder):
                return folder
        raise NotARun(f"{clean(path)} is a file, not a run.", "A run is a folder that holds meta.json.")
    if is_run(path):
        return path
    runs = runs_in(path)
    if len(runs) == 1:
        return runs[0]
    if runs:
        raise NotARun(f"{clean(path)} holds {len(runs)} runs.", f"Say which: {_listed(runs)}.")
    raise NotARun(f"{clean(path)} holds no run.", "A run is a folder that holds meta.json; `brickprof run` makes one.")


def _by_name(path: Path) -> Path:
    here = path.parent if len(path.parts) > 1 else Path(DEFAULT_HOME)
    runs = runs_in(here)
    wanted = path.name
    matching = [run for run in runs if run.name == wanted or run.name.endswith(f"-{wanted}")]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise NotARun(f"{len(matching)} runs end in {clean(wanted)}.", f"Say which: {_listed(matching)}.")
    raise NotARun(f"There is no run {clean(path)}.", _nearest(wanted, runs, here))


def _nearest(wanted: str, runs: list[Path], home: Path) -> str:
    if not runs:
        return f"{clean(home)} holds no runs; `brickprof run SCRIPT` makes one."
    endings = {run.name.rsplit("-", 1)[-1]: run for run in reversed(runs)}
    close = get_close_matches(wanted, [run.name for run in runs], n=1, cutoff=0.5)
    close = close or [endings[found].name for found in get_close_matches(wanted, list(endings), n=1, cutoff=0.5)]
    return f"Did you mean {clean(close[0])}?" if close else f"Runs in {clean(home)}: {_listed(runs)}."


def _listed(runs: list[Path]) -> str:
    names = ", ".join(clean(run.name) for run in runs[:_MOST_SHOWN])
    return f"{names}, ..." if len(runs) > _MOST_SHOWN else names
