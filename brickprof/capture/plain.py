"""Settings as plain data: what a configuration object of the script holds, without running any of its code.

Enters: a dataclass, a namespace or a dictionary. Leaves: numbers, words and flags by dotted key. Secrets, objects and
long texts are left out; nothing is called, and no attribute is looked up on an object of the script.
"""

from __future__ import annotations

import argparse
import re
from types import SimpleNamespace
from typing import Any

_SECRET = re.compile(r"token|secret|passw|api_?key|credential|private", re.IGNORECASE)
_MOST, _DEEPEST, _LONGEST = 128, 3, 64


def is_settings(value: Any) -> bool:
    kinds = type(value).__mro__
    if SimpleNamespace in kinds or argparse.Namespace in kinds:
        return True
    return any("__dataclass_fields__" in vars(kind) for kind in kinds)


def settings(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    _take(value, "", found, 0)
    return found


def _take(value: Any, prefix: str, found: dict[str, Any], depth: int) -> None:
    for key, item in _items(value):
        if len(found) >= _MOST or not isinstance(key, str) or _SECRET.search(key):
            continue
        name = f"{prefix}{key}"[: 2 * _LONGEST]
        if item is None or type(item) in (bool, int, float) or (type(item) is str and len(item) <= _LONGEST):
            found[name] = item
        elif depth < _DEEPEST and (type(item) is dict or is_settings(item)):
            _take(item, f"{name}.", found, depth + 1)


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list((value if type(value) is dict else own(value)).items())


def own(value: Any) -> dict[Any, Any]:
    """The attributes that ``value`` itself holds, whatever its class would answer."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if type(held) is dict else {}
