"""A configuration file as flat settings: YAML, TOML or JSON, whatever framework it is for.

Enters: a file, of any quality. Leaves: ``{"optimizer.lr": 3e-4, ...}`` and the line of each key where the format
tells. No tags, no aliases, no includes, no code: what is not plain data is an error that names the place.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brickprof.contracts import registry
from brickprof.errors import ConfigurationError
from brickprof.text import clean

FORMATS = {".yaml": "YAML", ".yml": "YAML", ".json": "JSON", ".toml": "TOML"}
_MOST_BYTES = 2 * 2**20
_MOST_KEYS = 5000
_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Document:
    file: str
    values: dict[str, Any]
    lines: dict[str, int]
    """Where a key stands; empty where the format does not tell."""

    def at(self, key: str) -> str:
        """``file:line`` of a key."""
        return f"{self.file}:{self.lines[key]}" if key in self.lines else self.file


def read(path: Path) -> Document:
    """The settings in a file."""
    content = _content(path)
    kind = FORMATS.get(path.suffix.lower()) or ("JSON" if content.lstrip()[:1] == b"{" else "YAML")
    if kind == "YAML":
        found, places = registry.parse(content, path.name)
        lines = {".".join(map(str, place)): line for place, line in places.items()}
    else:
        found, lines = _parsed(content, kind, path), {}
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"{clean(path)} holds no settings.", "A configuration is a mapping of names to values."
        )
    values: dict[str, Any] = {}
    _flatten(found, "", values, 0)
    return Document(path.name, values, {key: line for key, line in lines.items() if key in values})


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except IsADirectoryError:
        raise ConfigurationError(f"{clean(path)} is a folder.", "Give the configuration file in it.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"{clean(path)} cannot be read: {clean(reason)}.") from None
    if len(content) > _MOST_BYTES:
        raise ConfigurationError(f"{clean(path)} has {len(content):,} bytes; that is no configuration.")
    if b"\0" in content[:4096]:
        raise ConfigurationError(f"{clean(path)} is not text.", f"I read {', '.join(sorted(set(FORMATS.values())))}.")
    return content


def _parsed(content: bytes, kind: str, path: Path) -> Any:
    try:
        text = content.decode("utf-8-sig")
        return json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{clean(path)} is not {kind}: {clean(error, limit=200)}.") from None


def _flatten(value: Any, prefix: str, found: dict[str, Any], depth: int) -> None:
    if isinstance(value, dict) and value and depth < _DEEPEST:
        for key, item in value.items():
            _flatten(item, f"{prefix}.{key}" if prefix else str(key), found, depth + 1)
    elif len(found) < _MOST_KEYS:
        found[prefix] = value
