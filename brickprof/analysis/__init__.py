"""Logs that nobody instrumented, judged like any run: what `brickprof analyze` does, without the command line.

Enters: paths. Leaves: a ``Judged`` for each run that they tell of, in order, and a ``Problem`` for each file that is no
log.

    files      paths, folders, globs -> the files that are to be read
    groups     files -> which of them tell of one run
    judging    the logs of one run -> a diagnosis
    engines    where the work is done: here, in processes, on a Dask cluster
    following  a log that still grows
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brickprof.analysis.analysing import Analysis, analyse
    from brickprof.analysis.judging import Judged, Options, Problem

__all__ = ["Analysis", "Judged", "Options", "Problem", "analyse"]

_HOMES = {
    "Analysis": "analysing",
    "analyse": "analysing",
    "Judged": "judging",
    "Options": "judging",
    "Problem": "judging",
}


def __getattr__(name: str) -> Any:
    # All readers come with these: who opens a recorded run (``opening``) waits for none of them.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
