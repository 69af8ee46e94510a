"""A training process takes its place in a run: which rank, which folder, where in the machine.

Enters: the run's folder and the process's surroundings. Leaves: a rank folder that is ours alone, and the
facts of the ``run`` event.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from brickprof.bricks import Coordinates
from brickprof.journal.folders import run_id_of
from brickprof.settings import Settings

_MOST = 100_000


def claim(run: Path, settings: Settings) -> tuple[Path, dict[str, Any]]:
    """Makes this process's rank folder in ``run``; returns it with what the process says about itself."""
    rank, world, explicit = _rank()
    folder = _own_folder(run, rank) if explicit else _next_folder(run, rank)
    rank = int(folder.name[4:9])
    return folder, {**_about(run, settings), "rank": rank, "world_size": max(world, 1), **_place(rank)}


def _rank() -> tuple[int, int, bool]:
    """(rank, world size, whether somebody said so)."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size(), True
    said = os.environ.get("RANK", "")
    if said.isdecimal() and int(said) < _MOST:
        world = os.environ.get("WORLD_SIZE", "1")
        return int(said), int(world) if world.isdecimal() else 1, True
    return 0, 1, False


def _own_folder(run: Path, rank: int) -> Path:
    """``rank00003``, or ``rank00003-r1`` when an earlier attempt of this rank left one."""
    for attempt in range(1000):
        folder = run / (f"rank{rank:05d}" + (f"-r{attempt}" if attempt else ""))
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"too many attempts of rank {rank} in {run}")


def _next_folder(run: Path, rank: int) -> Path:
    for number in range(rank, _MOST):
        folder = run / f"rank{number:05d}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"no free rank in {run}")


def _place(rank: int) -> dict[str, Any]:
    local = os.environ.get("LOCAL_RANK", "")
    node = os.environ.get("GROUP_RANK", "")
    coordinates = Coordinates(
        node=int(node) if node.isdecimal() else 0,
        local_rank=int(local) if local.isdecimal() else rank,
        dp=rank,
    )
    return {"coordinates": coordinates.to_dict()}


def _about(run: Path, settings: Settings) -> dict[str, Any]:
    from brickprof import __version__

    torch = sys.modules.get("torch")
    return {
        "run_id": run_id_of(run),
        "version": __version__,
        "pid": os.getpid(),
        "python": platform.python_version(),
        "torch": str(getattr(torch, "__version__", "")),
        "level": settings.level,
        "budget": settings.budget,
        "argv": sys.argv[:50],
        "host": platform.node(),
        "restart": os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    }
