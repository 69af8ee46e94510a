"""Everything a training needs to go on as if nothing had happened, in one file that is whole or not there.

Enters: a trainer. Leaves: a file with weights, moments, schedule, scale, random states, data position and step; and
back.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from brickprof.errors import UnreadableInput

if TYPE_CHECKING:
    from brickprof.reference.train import Trainer


def state(trainer: Trainer) -> dict[str, Any]:
    return {
        "step": trainer.step,
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "schedule": trainer.schedule.state_dict(),
        "scaler": trainer.scaler.state_dict(),
        "position": [trainer.corpus.position.epoch, trainer.corpus.position.batch],
        "random": {"torch": torch.get_rng_state(), "python": _plain(random.getstate())},
    }


def save(trainer: Trainer, path: Path) -> None:
    """Writes beside the file first and then moves it there, so that a kill leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    torch.save(state(trainer), draft)
    os.replace(draft, path)


def load(trainer: Trainer, path: Path) -> None:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        trainer.model.load_state_dict(found["model"])
        trainer.optimizer.load_state_dict(found["optimizer"])
        trainer.schedule.load_state_dict(found["schedule"])
        trainer.scaler.load_state_dict(found["scaler"])
        trainer.step = found["step"]
        trainer.corpus.position.epoch, trainer.corpus.position.batch = found["position"]
        torch.set_rng_state(found["random"]["torch"])
        version, numbers, gauss = found["random"]["python"]
        random.setstate((version, tuple(numbers), gauss))
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        raise UnreadableInput(f"{path} is not a checkpoint of this training: {str(error).splitlines()[0]}.") from None


def latest(folder: Path) -> Path | None:
    """The checkpoint of the furthest step in ``folder``."""
    found = sorted(folder.glob("step-*.pt"), key=lambda path: int(path.stem.removeprefix("step-")))
    return found[-1] if found else None


def _plain(state: tuple[Any, ...]) -> list[Any]:
    version, numbers, gauss = state
    return [version, list(numbers), gauss]
