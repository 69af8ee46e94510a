"""Settings that a log states, as one flat mapping.

Enters: a configuration as trainers write it down: nested mappings, a JSON text, a table in Markdown. Leaves: dotted key
and plain value, in bounded number and length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from brickprof.text import clean

MOST = 2_000
_DEEPEST = 8
_LONGEST = 1 << 20


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    _flatten(nested, prefix, found, 0)
    return found


def _flatten(nested: Mapping[str, Any], prefix: str, found: dict[str, Any], depth: int) -> None:
    for key, value in nested.items():
        if len(found) >= MOST:
            return
        name = f"{prefix}{clean(key, limit=200)}"
        if isinstance(value, Mapping) and depth < _DEEPEST:
            _flatten(value, f"{name}.", found, depth + 1)
        elif value is None or isinstance(value, (bool, int, float)):
            found[name] = value
        else:
            found[name] = clean(value)


def of_text(text: str, prefix: str = "") -> dict[str, Any]:
    """The settings in ``text``; empty where it holds none."""
    text = text.strip()
    if len(text) > _LONGEST:
        return {}
    if text.startswith("{"):
        try:
            return flat(json.loads(text), prefix)
        except (ValueError, RecursionError):
            return {}
    return flat(_table(text), prefix) if text.startswith("|") else {}


def _table(text: str) -> dict[str, Any]:
    """A Markdown table of two columns, without its head."""
    rows = [[cell.strip().strip("`*") for cell in line.strip().strip("|").split("|")] for line in text.splitlines()]
    pairs = [row for row in rows if len(row) == 2]
    ruled = next((place for place, row in enumerate(pairs) if not row[0].strip("-: ")), None)
    return {key: _plain(value) for key, value in pairs[(ruled or -1) + 1 :] if key}


def _plain(value: str) -> Any:
    if value in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[value]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
