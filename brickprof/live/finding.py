"""Which run is meant: the one being recorded, else the newest.

Enters: what was typed, or nothing. Leaves: a run's folder. A folder of several runs stands for the one in it that is
being recorded, else for its newest.
"""

from __future__ import annotations

import time
from pathlib import Path

from brickprof import pulse
from brickprof.errors import NotARun
from brickprof.journal import PROCESS, rank_folders
from brickprof.live.condition import alive
from brickprof.live.following import listable
from brickprof.run.places import is_run, locate, runs_in
from brickprof.text import clean

_FRESH = 5.0
_MOST_LOOKED_AT = 50


def the_run(typed: str | None, home: str) -> Path:
    if typed is None:
        return _best(
            Path(home), "brickprof run SCRIPT, or brickprof.attach, makes one; or say which: brickprof watch RUN"
        )
    path = Path(typed)
    if path.is_dir():
        listable(path, path)
    if path.is_dir() and not is_run(path):
        return _best(path, "A run is a folder that holds meta.json.")
    try:
        return locate(path).absolute()
    except NotARun as error:
        if path.is_file():
            follow = f"A log is watched by: brickprof analyze --follow {clean(path)}"
            raise NotARun(f"{clean(path)} is a file, not a run.", follow) from None
        raise error from None


def being_recorded(folder: Path) -> bool:
    """Whether somebody still writes into it, at a glance: a beat or a line of the last seconds, or a living process."""
    for rank in rank_folders(folder).values():
        beat = pulse.read(rank)
        if beat is not None and beat.state == "recording":
            return alive(beat.pid, beat.beat_ns / 1e9 or time.time())
    try:
        return not rank_folders(folder) and time.time() - (folder / PROCESS).stat().st_mtime < _FRESH
    except OSError:
        return False


def _best(home: Path, hint: str) -> Path:
    if home.is_dir():
        listable(home, home)
    runs = runs_in(home)
    if not runs:
        raise NotARun(f"{clean(home)} holds no run.", hint)
    return next((run for run in runs[:_MOST_LOOKED_AT] if being_recorded(run)), runs[0]).absolute()
