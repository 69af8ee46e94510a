"""The diagnosis beside its run: ``diagnosis.json``, whole or not at all.

Enters: a Diagnosis and the run's folder. Leaves: the file that others parse.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from brickprof.diagnosis.model import Diagnosis

NAME = "diagnosis.json"


def write(diagnosis: Diagnosis, folder: Path) -> Path:
    """Writes through a temporary file, so that a reader never finds half of it."""
    path = folder / NAME
    temporary = folder / f".{NAME}.{os.getpid()}"
    text = json.dumps(diagnosis.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    temporary.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    os.replace(temporary, path)
    return path
