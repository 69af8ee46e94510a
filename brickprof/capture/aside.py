"""Work that is done aside, on a thread of its own: compiling a kernel takes a second or two, and no step waits for it.

Enters: a function. Leaves: nothing; it runs while the training goes on. At the end of the program it is waited for, up
to ``PATIENCE``: an interpreter that shuts down ends every other thread the moment it asks for the interpreter again,
and where that happens inside C++ (a compiler, torch) the whole process is aborted: a script that had ended well. By
then the exception that ended the script, if any, has been written down.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

PATIENCE = 30.0
"""Seconds that the end of a program waits for all of it."""
_running: set[threading.Thread] = set()
_awaited = False


def run(work: Callable[..., None], *args: Any, name: str) -> bool:
    """False where no thread can be had: the limit of processes is reached, or the interpreter shuts down."""
    global _awaited
    if not _awaited:
        atexit.register(_wait)
        _awaited = True
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return False
    _running.difference_update([other for other in _running if not other.is_alive()])
    _running.add(thread)
    return True


def _wait() -> None:
    until = time.monotonic() + PATIENCE
    for thread in list(_running):
        with suppress(RuntimeError):
            thread.join(max(0.0, until - time.monotonic()))
