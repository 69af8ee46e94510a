"""The files of a run as they stand: what tells whether anything was written since.

Enters: a run's folder. Leaves: for each file that a run is read from, its size and when it was last written; and, where
that is not enough (a copied folder has other times), a checksum of what is in it.
"""

from __future__ import annotations

from pathlib import Path

from brickprof.journal import EVENTS, META, PROCESS, SAMPLES, SLATE, SPANS, rank_folders
from brickprof.journal.sums import crc32

_AT_ONCE = 2**22

State = dict[str, tuple[int, int]]
"""By the file's path in the run: bytes, and nanoseconds since 1970."""


def state(folder: Path) -> State:
    files = [folder / META, folder / PROCESS]
    files += [home / name for home in rank_folders(folder).values() for name in (EVENTS, SAMPLES, SPANS, SLATE)]
    found = {}
    for file in files:
        try:
            told = file.stat()
        except OSError:
            continue  # not every run has every file
        found[file.relative_to(folder).as_posix()] = (told.st_size, told.st_mtime_ns)
    return found


def checksum(file: Path) -> int:
    """CRC-32 of all bytes; ``OSError`` where it cannot be read."""
    found = 0
    with file.open("rb") as stream:
        while part := stream.read(_AT_ONCE):
            found = crc32(part, found)
    return found
