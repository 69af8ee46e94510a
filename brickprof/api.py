"""The two functions of the public API that only read.

Enters: a run's folder, its id, or a ``Run``. Leaves: a ``Run``; a ``Diagnosis``.
"""

from __future__ import annotations

from pathlib import Path

from brickprof.diagnosis import Diagnosis
from brickprof.diagnosis import diagnose as diagnose_run
from brickprof.run import Run


def load(path: str | Path) -> Run:
    """The run in a folder, alone in a folder, or in ./brickprof-runs with a name that ends in ``path``."""
    return Run.open(path)


def diagnose(run: Run | str | Path) -> Diagnosis:
    """What became of a run: the verdict, the findings, the contracts."""
    return diagnose_run(run if isinstance(run, Run) else load(run))
