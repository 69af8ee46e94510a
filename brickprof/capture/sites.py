"""Where in the user's own code something was asked for.

Enters: the current stack. Leaves: ``file:line`` of the innermost frame that is neither torch's, nor Triton's, nor ours.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType

import torch

_OURS = str(Path(__file__).resolve().parent.parent) + os.sep
_SEAMS = tuple(str(Path(_OURS, name).resolve()) + os.sep for name in ("probes", "kernels"))
_TRAININGS = str(Path(_OURS, "reference")) + os.sep  # ours, but written as a user would
_TRITON = tuple(
    os.path.join(os.path.realpath(place), "")
    for place in getattr(importlib.util.find_spec("triton"), "submodule_search_locations", None) or ()
)
_FOREIGN = (_OURS, *_SEAMS, str(Path(torch.__file__).resolve().parent) + os.sep, *_TRITON)
_WRAPPERS = (str(Path(_OURS, "capture", "patches.py")), str(Path(_OURS, "capture", "taps")))
_LAUNCHERS = tuple(str(Path(_OURS, "operators", name)) for name in ("launch.py", "queueing.py"))
_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
_PASSING = tuple(os.path.join("torch", *path) for path in (("_tensor.py",), ("overrides.py",), ("utils", "_device.py")))
"""What only hands a call on: ``format(loss)``, and function modes."""
_known: dict[str, bool] = {}
_acting: dict[str, bool] = {}
_passing: dict[str, bool] = {}


def caller() -> str:
    """The user's line that led here, as ``name.py:12``."""
    frame = sys._getframe(1)
    while frame is not None:
        if users(frame.f_code.co_filename):
            return line(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def asked(frame: FrameType | None) -> tuple[str, bool] | None:
    """The user's line that led to ``frame``, and whether it asked by itself; False where torch had work in between.

    None where we act ourselves. Python's own library stands in between as torch's messengers do. No line in a thread
    that is nobody's.
    """
    direct = True
    while frame is not None:
        name = frame.f_code.co_filename
        if not passes(name):
            if users(name):
                return line(frame), direct
            if ours(name):
                return None
            direct = False
        frame = frame.f_back
    return "", False


def passes(name: str) -> bool:
    """Whether code in ``name`` only hands a call on."""
    own = _passing.get(name)
    if own is None:
        library = name.startswith((_LIBRARY, "<frozen")) and "-packages" not in name
        own = _passing[name] = library or wraps(name) or name.endswith(_PASSING)
    return own


def users(name: str) -> bool:
    """Whether the file ``name`` is neither torch's, nor Triton's, nor ours."""
    own = _known.get(name)
    if own is None:
        foreign = name.startswith((*_FOREIGN, "<frozen")) and not name.startswith(_TRAININGS)
        own = _known[name] = not foreign
    return own


def ours(name: str) -> bool:
    """Whether code in ``name`` acts for us: our wrappers stand between torch and the user and act for neither."""
    own = _acting.get(name)
    if own is None:
        own = _acting[name] = name.startswith((_OURS, *_SEAMS)) and not name.startswith(_WRAPPERS)
    return own


def wraps(name: str) -> bool:
    """Whether ``name`` is one of our wrappers."""
    return name.startswith(_WRAPPERS)


def launches(name: str) -> bool:
    """Whether ``name`` launches kernels for whoever calls it: it is ours, and acts for them."""
    return name in _LAUNCHERS


def line(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
