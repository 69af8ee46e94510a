"""Work that a process beside this one does: two interpreters wait for each other nowhere.

Enters: a function that makes bytes. Leaves: these bytes; or None where the process came to no good end, and whoever
asks does the work itself.

The process is forked, which is right only where there is nothing yet that a fork loses: in one with a single thread.
That is a command that has just begun, and keeps numpy and pyarrow from having threads (``alone``); where a training
runs, or somebody else has loaded them, nothing is forked.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

with suppress(ImportError):  # not Linux: then nothing is forked
    import fcntl

_TASKS = "/proc/self/task"
_ALONE = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""The second is asked for by the allocator in pyarrow's builds for x86_64, which has a thread from its import on."""
_STREAMS = (0, 1, 2)
_PATIENCE = 60.0
"""Seconds that a process gets which is stopped, or waits for a disk; then its work is done where it is asked for."""
_MOMENT = 0.0005


def alone() -> None:
    """Of a process that is about to read and to end: numpy and pyarrow, if loaded from now on, make no threads."""
    for name, value in _ALONE.items():
        os.environ.setdefault(name, value)


def possible() -> bool:
    """Whether a process may be forked here, and has a core of its own."""
    try:
        return len(os.listdir(_TASKS)) == 1 and len(os.sched_getaffinity(0)) > 1 and hasattr(os, "memfd_create")
    except (OSError, AttributeError):  # not Linux
        return False


def _memory() -> int:
    """A file without a name, and with a number that no stream has: where one of those is closed, it would be free."""
    made = os.memfd_create("brickprof-errand")
    if made > _STREAMS[-1]:
        return made
    try:
        return fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, _STREAMS[-1] + 1)
    finally:
        os.close(made)


class Errand:
    """Begins when it is made; ``OSError`` where no process can be had."""

    def __init__(self, work: Callable[[], bytes]) -> None:
        self._file, this = _memory(), os.getpid()
        try:
            self._process = os.fork()
            if not self._process:
                self._do(work)
        except OSError:
            os.close(self._file)
            raise
        finally:
            if os.getpid() != this:  # interrupted before it began
                os._exit(1)

    def answer(self, seconds: float = _PATIENCE) -> bytes | None:
        """What the work made, when it is done; one that takes longer than ``seconds`` from now on is ended. To be asked
        for once."""
        failed = self._ended(time.monotonic() + seconds)
        with os.fdopen(self._file, "rb") as file:
            file.seek(0)
            return None if failed else file.read()

    def _ended(self, deadline: float) -> int:
        """How it ended, when it has; 0 is well."""
        try:
            while True:
                process, status = os.waitpid(self._process, os.WNOHANG)
                if process:
                    return status
                if time.monotonic() > deadline:
                    os.kill(self._process, signal.SIGKILL)
                    os.waitpid(self._process, 0)
                    return 1
                time.sleep(_MOMENT)
        except ChildProcessError:  # somebody else has waited for it: nobody knows how
            return 1

    def _do(self, work: Callable[[], bytes]) -> None:
        """Never returns: nothing of what this process was about to do is done in the other one."""
        code = 1  # then it is done again, where somebody can be told what is wrong
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in _STREAMS:
                os.dup2(nowhere, stream)  # who waits for the end of our output does not wait for this
            made = memoryview(work())
            while made:
                made = made[os.write(self._file, made) :]
            code = 0
        finally:
            os._exit(code)
