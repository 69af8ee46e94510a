"""Where things lie in a run's folder."""

from __future__ import annotations

import re
from pathlib import Path

META = "meta.json"
PROCESS = "process.jsonl"
EVENTS = "events.jsonl"
SAMPLES = "samples.arrow"
SPANS = "spans.arrow"

PROCESS_RANK = -1
"""The rank of what the launch itself wrote."""


def rank_folder(run: Path, rank: int) -> Path:
    return run / f"rank{rank:05d}"


def rank_folders(run: Path) -> dict[int, Path]:
    """The ranks of a run, in order."""
    found = {rank_of(folder / EVENTS): folder for folder in run.glob("rank*") if folder.is_dir()}
    found.pop(PROCESS_RANK, None)
    return dict(sorted(found.items()))


def rank_of(path: Path) -> int:
    """The rank that wrote a file of a run, from the folder it lies in."""
    name = path.parent.name
    return int(name[4:]) if re.fullmatch(r"rank\d+", name) else PROCESS_RANK


def shown(path: Path) -> str:
    """A file of a run as a reader wants it named."""
    return f"{path.parent.name}/{path.name}" if rank_of(path) != PROCESS_RANK else path.name
