"""The diagnosis beside its run: ``diagnosis.json``, whole or not at all.

Enters: a Diagnosis, the run's folder, and the run it was made of. Leaves: the file that others parse, and a note of
what it was made of, so that it need not be made again (``brickprof.diagnosis.keeping``).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from brickprof.diagnosis import keeping
from brickprof.diagnosis.model import Diagnosis

if TYPE_CHECKING:
    from brickprof.run import Run

NAME = keeping.DIAGNOSIS


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
            keeping.remember(folder, run.files)
    return path
