"""Named tuples, which make themselves in a frame that has no builtins.

Enters: every class of them that there is. Leaves: the one builtin that torch's trace needs there, and how to take it
away again. The trace imports a module each time it tells something, in whatever frame is running. The collector may
run while a tuple is being made, and drop a tensor or an event then: the import fails, what was dropped is not told,
and torch writes an error among the script's own lines.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any


def let_import() -> list[Callable[[], None]]:
    """From now on a module can be imported while a named tuple is being made; how to undo that."""
    mended = [names for kind in tuple.__subclasses__() if (names := _builtins(kind)) == {}]
    for names in mended:
        names["__import__"] = builtins.__import__

    def undo() -> None:
        for names in mended:
            names.pop("__import__", None)

    return [undo]


def _builtins(kind: type) -> dict[str, Any] | None:
    """Those of the function that makes its instances, where it has a namespace of its own."""
    found = getattr(kind.__new__, "__globals__", {}).get("__builtins__")
    return found if isinstance(found, dict) else None
