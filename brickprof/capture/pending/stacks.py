"""The user's lines that led to an operation, cheap to keep.

Enters: the current stack. Leaves: a ``Site``, the innermost few frames of the user's own as code and position, put into
words only when somebody asks. Operations of ours have none. The backward runs in a thread that holds no line of the
user's: there it is the line that the training's own thread stands at.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType

from brickprof.capture import sites

Site = tuple[tuple[CodeType, int], ...]
_FRAMES = 4
_HERE = str(Path(__file__).resolve().parent) + os.sep
_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
_PACKAGES = tuple({sysconfig.get_paths()[name] + os.sep for name in ("purelib", "platlib")})
_users: dict[str, bool] = {}


def here(thread: int = 0) -> Site | None:
    """Where the user asked for what is being done; None where we did."""
    found: list[tuple[CodeType, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _FRAMES:
        name = frame.f_code.co_filename
        if _of_the_user(name):
            found.append((frame.f_code, frame.f_lasti))
        elif not found and sites.ours(name) and not name.startswith(_HERE) and not sites.launches(name):
            return None
        frame = frame.f_back
    return tuple(found) or _elsewhere(thread)


def _elsewhere(thread: int) -> Site:
    frame = sys._current_frames().get(thread)
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < _FRAMES:
        if _of_the_user(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def describe(site: Site | None) -> list[str]:
    """Innermost first: ``train.py:12 in step``."""
    return [f"{os.path.basename(code.co_filename)}:{_line(code, at)} in {code.co_name}" for code, at in site or ()]


def _line(code: CodeType, at: int) -> int:
    for start, end, line in code.co_lines():
        if start <= at < end and line is not None:
            return line
    return code.co_firstlineno


def _of_the_user(name: str) -> bool:
    """Neither torch's, nor Triton's, nor ours, nor of Python's own library."""
    own = _users.get(name)
    if own is None:
        library = name.startswith(_LIBRARY) and not name.startswith(_PACKAGES)
        own = _users[name] = sites.users(name) and not library
    return own
