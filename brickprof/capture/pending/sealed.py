"""Methods of torch's own classes in C, which refuse to have an attribute set.

Enters: a class, a method's name and what makes its stand-in. Leaves: the stand-in in its place and how to put back
what was there, or None where this Python does not let it. A class keeps its methods in a dictionary that Python's
collector names; when that has changed, the class is told, and every cache of it is emptied.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any


def put(owner: type, name: str, make: Callable[[Any], Any]) -> Callable[[], None] | None:
    """Replaces ``owner.name``; how to put back what was there."""
    try:
        methods = _methods(owner)
        if methods is None or name not in methods:
            return None
        original = methods[name]
        wrapper = make(original)
        _set(owner, methods, name, wrapper)
        if getattr(owner, name) is not wrapper:
            _set(owner, methods, name, original)
            return None
    except Exception:
        return None

    def undo() -> None:
        if methods.get(name) is wrapper:  # else somebody else has wrapped us since
            _set(owner, methods, name, original)

    return undo


def _methods(owner: type) -> dict[str, Any] | None:
    found = [each for each in gc.get_referents(owner.__dict__) if type(each) is dict]
    return found[0] if len(found) == 1 and found[0].keys() == owner.__dict__.keys() else None


def _set(owner: type, methods: dict[str, Any], name: str, value: Any) -> None:
    methods[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
