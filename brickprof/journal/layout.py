"""Where things lie in a run's folder."""

from __future__ import annotations

import re
from pathlib import Path

META = "meta.json"
PROCESS = "process.jsonl"
EVENTS = "events.jsonl"
SAMPLES = "samples.arrow"
SPANS = "spans.arrow"
SLATE = "slate.bin"

_RANK = re.compile(r"rank(\d{1,9})(?:-r(\d{1,4}))?")
PROCESS_RANK = -1
"""The rank of what the launch itself wrote."""


def rank_folder(run: Path, rank: int) -> Path:
    return run / f"rank{rank:05d}"


def rank_folders(run: Path) -> dict[int, Path]:
    """The ranks of a run, in order; of a rank that was restarted, the last attempt."""
    attempts = sorted(_attempt(folder) for folder in run.glob("rank*") if folder.is_dir())
    found = {rank: folder for rank, _, folder in attempts}
    found.pop(PROCESS_RANK, None)
    return found


def _attempt(folder: Path) -> tuple[int, int, Path]:
    matched = _RANK.fullmatch(folder.name)
    return rank_of(folder / EVENTS), int(matched[2] or 0) if matched else 0, folder


def rank_of(path: Path) -> int:
    """The rank that wrote a file of a run, from the folder it lies in."""
    matched = _RANK.fullmatch(path.parent.name)
    return int(matched[1]) if matched else PROCESS_RANK


def shown(path: Path) -> str:
    """A file of a run as a reader wants it named."""
    return f"{path.parent.name}/{path.name}" if rank_of(path) != PROCESS_RANK else path.name
