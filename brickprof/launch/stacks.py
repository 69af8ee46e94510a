"""The stacks that processes of a run left behind, by crashing or by being asked.

Enters: ``stacks-PID.txt`` files of a run. Leaves: ``stacks`` events, the files of ranks moved to
``rankNNNNN/stacks.txt``, and no empty ones.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from brickprof import pulse
from brickprof.journal import ProcessLog
from brickprof.journal.layout import rank_folders
from brickprof.launch import processes

_MOST_TEXT = 200_000
_FATAL = "Fatal Python error"


def collect(folder: Path, log: ProcessLog) -> None:
    """Files what is there; files of processes that still live (other ranks) stay where they are."""
    ranks = {beat.pid: (rank, path) for rank, path in rank_folders(folder).items() if (beat := pulse.read(path))}
    for file in sorted(folder.glob("stacks-*.txt")):
        number = file.stem.removeprefix("stacks-")
        if not number.isdigit() or processes.belongs(int(number), folder):
            continue
        with suppress(OSError):
            text = _read(file)
            if not text:
                file.unlink()
                continue
            rank, home = ranks.get(int(number), (None, None))
            if _FATAL in text:
                crash = text[text.index(_FATAL) :]
                log.event("stacks", 0, {"pid": int(number), "rank": rank, "stacks": threads(crash)})
            if home is not None:
                os.replace(file, home / "stacks.txt")


def threads(text: str) -> list[str]:
    """A dump of faulthandler's, one text a thread."""
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def _read(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(_MOST_TEXT).decode("utf-8", "replace")
