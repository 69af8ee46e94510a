"""Where in the user's own code something was asked for.

Enters: the current stack. Leaves: ``file:line`` of the innermost frame that is neither torch's nor ours.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

_OURS = str(Path(__file__).resolve().parent.parent) + os.sep
_SEAMS = tuple(str(Path(_OURS, name).resolve()) + os.sep for name in ("probes", "kernels"))
_TRAININGS = str(Path(_OURS, "reference")) + os.sep  # ours, but written as a user would
_FOREIGN = (_OURS, *_SEAMS, str(Path(torch.__file__).resolve().parent) + os.sep)
_known: dict[str, bool] = {}


def caller() -> str:
    """The user's line that led here, as ``name.py:12``."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        own = _known.get(name)
        if own is None:
            foreign = name.startswith((*_FOREIGN, "<frozen")) and not name.startswith(_TRAININGS)
            own = _known[name] = not foreign
        if own:
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
