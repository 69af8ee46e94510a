"""A new run's own folder: ``<name>-<time>-<id>``, never one that exists.

Enters: the folder that holds runs, and a name. Leaves: a fresh, empty folder.
"""

from __future__ import annotations

import errno
import secrets
import string
import time
from pathlib import Path

from brickprof.text import file_name

ALPHABET = string.ascii_lowercase + string.digits
ID_LENGTH = 4
_TRIES = 64


def folder_name(name: str, run_id: str, started: float | None = None) -> str:
    stamp = time.strftime("%Y%m%d-%H%M", time.localtime(started))
    return f"{file_name(name)}-{stamp}-{run_id}"


def run_id_of(folder: Path) -> str:
    """The short name of a run, which ends its folder's."""
    return folder.name.rpartition("-")[2]


def new_run_folder(out: Path, name: str) -> Path:
    """Makes the folder; ``OSError`` when that is not possible."""
    out.mkdir(parents=True, exist_ok=True)
    for _ in range(_TRIES):
        run_id = "".join(secrets.choice(ALPHABET) for _ in range(ID_LENGTH))
        path = out / folder_name(name, run_id)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise FileExistsError(errno.EEXIST, "no free name was found", str(out))
