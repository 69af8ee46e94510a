"""The diagnosis beside its run: ``diagnosis.json``, whole or not at all.

Enters: a Diagnosis and the run's folder. Leaves: the file that others parse.
"""

from __future__ import annotations

import os
from pathlib import Path

from brickprof.diagnosis.model import Diagnosis

NAME = "diagnosis.json"


def write(diagnosis: Diagnosis, folder: Path) -> Path:
    """Writes through a temporary file, so that a reader never finds half of it; ``OSError`` when it cannot."""
    path = folder / NAME
    temporary = folder / f".{NAME}.{os.getpid()}"
    try:
        temporary.write_text(diagnosis.to_json(), encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return path
