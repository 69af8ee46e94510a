"""The run that somebody means: a recorded one, or the one that a log tells of.

Enters: what was typed: a run's folder, the last letters of its id, or logs, with commas between the files of one run.
Leaves: a ``Run``.
"""

from __future__ import annotations

import os

from brickprof.errors import BrickprofError, NotARun, UnreadableInput
from brickprof.run import Run
from brickprof.text import clean


def open_run(typed: str) -> Run:
    try:
        return Run.open(typed)
    except NotARun as error:
        files = [typed] if os.path.exists(typed) or "," not in typed else typed.split(",")
        if not all(os.path.exists(file) for file in files):
            raise
        return _of_logs(_files(files), error)


def _files(typed: list[str]) -> list[str]:
    """The files themselves: a folder may stand for the logs in it."""
    from brickprof.analysis.files import Found, find

    if not any(os.path.isdir(each) for each in typed):
        return typed
    return [found.path for found in find(typed) if isinstance(found, Found) and found.sure]


def _of_logs(files: list[str], instead: NotARun) -> Run:
    from brickprof.analysis.groups import by_name

    groups = by_name(files)
    if not groups:
        raise instead
    if len(groups) > 1:
        raise UnreadableInput(f"{clean(os.path.dirname(files[0]))} holds {len(groups)} logs.", "Say which.")
    try:
        return Run.from_log(groups[0].paths)
    except BrickprofError as error:
        raise UnreadableInput(error.message, error.hint) from None
