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

from brickprof.analysis.analyse import Analysis, analyse
from brickprof.analysis.judging import Judged, Options, Problem

__all__ = ["Analysis", "Judged", "Options", "Problem", "analyse"]
