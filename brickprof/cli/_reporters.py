"""The reports there are, and what one of them makes of a run; for every command that writes one.

Enters: a name, or the ending of a file. Leaves: the report's module, and its text or its bytes.

A report is a module of ``brickprof.reports`` with ``NAME``, ``SUFFIX`` and one of: ``REPORT(diagnosis, console)``;
``REPORT(diagnosis, console, run)`` and ``NEEDS_RUN = True``; ``DATA(diagnosis, run)``, which gives bytes, and
``BINARY = True``. ``ENDINGS`` are further endings of files that mean it.
"""

from __future__ import annotations

import importlib
import io
import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.diagnosis import Diagnosis
    from brickprof.run import Run

_REPORTS = "brickprof.reports"
_WIDTH = 110


def known() -> list[Any]:
    """Every report, ours and third parties', by name."""
    from brickprof import plugins

    found = [plugin.module for plugin in plugins.discover(_REPORTS)]
    return sorted((one for one in found if hasattr(one, "REPORT") or hasattr(one, "DATA")), key=lambda one: one.NAME)


def named(name: str) -> Any:
    from brickprof.errors import UsageError
    from brickprof.text import clean

    if (module := _ours(name)) is not None:
        return module
    modules = {module.NAME: module for module in known()}
    if name in modules:
        return modules[name]
    near = get_close_matches(name, list(modules), n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(f"there is no report {clean(name)}.", f"{hint}There are: {', '.join(modules)}.")


def _ours(name: str) -> Any:
    """Our own report of that name without all others, which import much; None where third parties have reports."""
    from brickprof import plugins

    said = re.compile(rf'^NAME\b.*= "{re.escape(name)}"', re.MULTILINE)
    for place in importlib.import_module(_REPORTS).__path__ if not plugins.others(_REPORTS) else ():
        for file in Path(place).glob("*.py"):
            if said.search(file.read_text("utf-8")):
                return importlib.import_module(f"{_REPORTS}.{file.stem}")
    return None


def by_ending(file: str) -> Any:
    """The report that writes files of this name; where several do, the one with the longest ending."""
    from brickprof.errors import UsageError
    from brickprof.text import clean

    modules = {ending: module for module in known() for ending in endings(module)}
    fitting = [ending for ending in modules if Path(file).name.lower().endswith(ending)]
    if not fitting:
        hint = f"There are: {', '.join(sorted(modules))}. Or say which with -r."
        raise UsageError(f"no report is written as {clean(file)}.", hint)
    return modules[max(fitting, key=len)]


def endings(module: Any) -> tuple[str, ...]:
    return tuple(ending for ending in (module.SUFFIX, *getattr(module, "ENDINGS", ())) if ending)


def about(module: Any) -> str:
    """What a report is, in a line: the first of its module's docstring."""
    return str(module.__doc__ or "").strip().split("\n", 1)[0].rstrip(".")


def is_binary(module: Any) -> bool:
    return bool(getattr(module, "BINARY", False))


def show(module: Any, diagnosis: Diagnosis, run: Run | None, console: Console) -> None:
    """The report on ``console``: styled where it is one for people."""
    if getattr(module, "NEEDS_RUN", False):
        module.REPORT(diagnosis, console, run)
    else:
        module.REPORT(diagnosis, console)


def content(module: Any, diagnosis: Diagnosis, run: Run | None) -> str | bytes:
    """The report as a file holds it."""
    from rich.console import Console

    if is_binary(module):
        return bytes(module.DATA(diagnosis, run))
    text = io.StringIO()
    show(module, diagnosis, run, Console(file=text, width=_WIDTH))
    return text.getvalue()
