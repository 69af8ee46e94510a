"""Finds the one-file plugins of a seam: probes, kernels, rules, causes, readers, reports, commands.

Enters: the name of a package such as ``brickprof.rules``. Leaves: its modules in the order of their names,
those of third parties behind them, and a note for each one that could not be imported.

A third party adds a module to a seam with an entry point in the group ``brickprof.plugins`` whose name
starts with the seam: ``rules.my_rule = "my_package.my_rule"`` joins ``brickprof.rules``. A broken plugin of
somebody else is a note, never the end of a command; a broken module of our own raises.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

GROUP = "brickprof.plugins"
_ROOT = "brickprof."


@dataclass(frozen=True, slots=True)
class Plugin:
    name: str
    module: ModuleType


@dataclass(frozen=True, slots=True)
class Found:
    plugins: tuple[Plugin, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Plugin]:
        return iter(self.plugins)

    def exports(self, attribute: str) -> dict[str, Any]:
        """What each plugin calls ``attribute``, by plugin name; modules without it take no part."""
        return {
            plugin.name: getattr(plugin.module, attribute)
            for plugin in self.plugins
            if hasattr(plugin.module, attribute)
        }


def discover(package: str, *, leave_out: tuple[str, ...] = ()) -> Found:
    """Every module of ``package``, ours and third parties'."""
    ours = [name for name in names(package) if name not in leave_out]
    plugins = [Plugin(name, importlib.import_module(f"{package}.{name}")) for name in ours]
    theirs, notes = _from_entry_points(package)
    return Found((*plugins, *theirs), tuple(notes))


def names(package: str) -> list[str]:
    """The names of our own modules in ``package``, without importing them."""
    # reports/, probes/ and kernels/ are links without __init__.py: a namespace package's path is fine here.
    folder = importlib.import_module(package).__path__
    return sorted(module.name for module in pkgutil.iter_modules(folder) if not module.name.startswith("_"))


def load(package: str, name: str) -> ModuleType:
    """One module of a seam by its name, ours or a third party's; KeyError when nobody has it."""
    if name in names(package):
        return importlib.import_module(f"{package}.{name}")
    for plugin in _from_entry_points(package)[0]:
        if plugin.name == name:
            return plugin.module
    raise KeyError(name)


def others(package: str) -> list[Any]:
    """The entry points of third parties that join ``package``."""
    seam = package.removeprefix(_ROOT)
    return [point for point in points() if point.name.startswith(f"{seam}.")]


def points() -> list[Any]:
    """The entry points of third parties, of every seam, by name."""
    if "importlib.metadata" not in sys.modules and not _mentioned(tuple(sys.path)):
        return []
    from importlib.metadata import entry_points

    return _points(entry_points, tuple(sys.path))


@functools.lru_cache(maxsize=1)
def _mentioned(path: tuple[str, ...]) -> bool:
    """Whether anything that is installed speaks of our group: to load what reads it properly takes ten times as long.

    Where something may be installed in a way that is not plain files in a folder, it says so too.
    """
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    if any(finder is not PathFinder for finder in finders) or {*map(type, path)} - {str}:
        return True
    if any(map(os.path.isfile, path)):
        return True
    for root in path:
        try:
            names = os.listdir(root or ".")
        except (OSError, ValueError):
            continue
        if root.endswith(".egg") or any(GROUP in _entry_points(root, name) for name in names):
            return True
    return False


def _entry_points(root: str, name: str) -> str:
    if not name.lower().endswith((".dist-info", ".egg-info")):
        return ""
    try:
        with open(os.path.join(root, name, "entry_points.txt"), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


@functools.lru_cache(maxsize=1)
def _points(find: Callable[..., Any], path: tuple[str, ...]) -> list[Any]:
    """Those of every seam, by name: a command looks through several seams, and what is installed stays."""
    return sorted(find(group=GROUP), key=lambda point: point.name)


def _from_entry_points(package: str) -> tuple[list[Plugin], list[str]]:
    seam = package.removeprefix(_ROOT)
    plugins: list[Plugin] = []
    notes: list[str] = []
    for point in others(package):
        try:
            module = importlib.import_module(point.module)
        except Exception as error:  # somebody else's code, of any quality
            notes.append(f"plugin {point.name} ({point.value}) is left out: {type(error).__name__}: {error}")
            continue
        plugins.append(Plugin(point.name.removeprefix(f"{seam}."), module))
    return plugins, notes
