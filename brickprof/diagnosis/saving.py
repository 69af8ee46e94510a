"""The diagnosis beside its run: ``diagnosis.json``, whole or not at all.

Enters: a Diagnosis, the run's folder, and the run it was made of. Leaves: the file that others parse, and a note of
what it was made of, so that it need not be made again (``brickprof.diagnosis.keeping``).
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from brickprof.diagnosis import keeping
from brickprof.diagnosis.model import Diagnosis

if TYPE_CHECKING:
    from brickprof.run import Run

NAME = keeping.DIAGNOSIS
_A_WHILE = 600 * 10**9


def write(diagnosis: Diagnosis, folder: Path, run: Run | None = None) -> Path:
    """Writes through a temporary file, so that a reader never finds half of it; ``OSError`` when it cannot.

    ``run`` is the run that was judged, as it was opened for that.
    """
    path = folder / NAME
    temporary = folder / f".{NAME}.{os.getpid()}"
    try:
        temporary.write_text(diagnosis.to_json(), encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if run is not None and run.files:
        with suppress(OSError):  # then it is made again when somebody asks
            keeping.remember(folder, run.files, run.checksums())
    return path


def keep(diagnosis: Diagnosis, run: Run) -> None:
    """Stores what was found of a run that nobody had judged so far, if it is over and its folder takes it.

    It is what the next one who asks would find, only later.
    """
    if run.path is None or not run.files or (run.path / NAME).exists() or not _over(diagnosis, run):
        return
    with suppress(OSError):
        write(diagnosis, run.path, run)


def _over(diagnosis: Diagnosis, run: Run) -> bool:
    """Whether it was seen to end, or nothing came of it for a while: it was killed together with who watched it."""
    last = max(time_ns for _, time_ns in run.files.values())
    return diagnosis.run.get("ended") is not False or time.time_ns() - last > _A_WHILE
