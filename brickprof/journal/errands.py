"""Work that a process beside this one does: two interpreters wait for each other nowhere.

Enters: a function that makes bytes. Leaves: these bytes; or None where the process came to no good end, and whoever
asks does the work itself.

The process is forked, which is right only where there is nothing yet that a fork loses: in one with a single thread.
That is a command that has just begun, and keeps numpy from having threads (``alone``); where a training runs, or
somebody else has loaded numpy, nothing is forked.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_TASKS = "/proc/self/task"


def alone() -> None:
    """Of a process that is about to read and to end: numpy, if it is loaded from now on, makes no threads."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def possible() -> bool:
    """Whether a process may be forked here, and has a core of its own."""
    try:
        return len(os.listdir(_TASKS)) == 1 and len(os.sched_getaffinity(0)) > 1 and hasattr(os, "memfd_create")
    except (OSError, AttributeError):  # not Linux
        return False


class Errand:
    """Begins when it is made; ``OSError`` where no process can be had."""

    def __init__(self, work: Callable[[], bytes]) -> None:
        self._file = os.memfd_create("brickprof-errand")
        try:
            self._process = os.fork()
        except OSError:
            os.close(self._file)
            raise
        if not self._process:
            self._do(work)

    def answer(self) -> bytes | None:
        """What the work made, when it is done. To be asked for once."""
        try:
            failed = os.waitpid(self._process, 0)[1]
        except ChildProcessError:  # somebody else has waited for it: nobody knows how it ended
            failed = 1
        with os.fdopen(self._file, "rb") as file:
            file.seek(0)
            return None if failed else file.read()

    def _do(self, work: Callable[[], bytes]) -> None:
        """Never returns: nothing of what this process was about to do is done in the other one."""
        code = 1  # then it is done again, where somebody can be told what is wrong
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)  # who waits for the end of our output does not wait for this
            made = memoryview(work())
            while made:
                made = made[os.write(self._file, made) :]
            code = 0
        finally:
            os._exit(code)
