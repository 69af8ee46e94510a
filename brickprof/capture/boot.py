"""The first lines of a recorded process, run by ``site/sitecustomize.py`` before the script's own.

Enters: the environment that a supervisor set. Leaves: a process that runs exactly as it would alone, and that

    dumps its stacks into the run's folder when it crashes or is asked to (a real-time signal),
    arms capture at the moment it imports torch, and not before,
    journals the exception that ended it.

Python itself runs the script, so ``__main__``, ``sys.argv``, tracebacks and exit codes are its own. Nothing
here may raise, print, or leave a file behind that holds nothing.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Protocol

RUN_VARIABLE = "BRICKPROF_RUN"
SETTINGS_VARIABLE = "BRICKPROF_SETTINGS"
MAIN_VARIABLE = "BRICKPROF_MAIN"
"""Set for the supervisor's own child only, which takes it out of the environment again."""

LIFELINE_VARIABLE = "BRICKPROF_LIFELINE"

DUMP_SIGNAL = int(getattr(signal, "SIGRTMAX", 3)) - 3
"""Asks a process for its stacks; 0 where there are no real-time signals."""
HIGH_DESCRIPTOR = 400
"""Ours lie above it, so that the script's files get the numbers they always had."""


class Armed(Protocol):
    def exception(self, error: BaseException) -> None: ...

    def close(self) -> None: ...


class _Process:
    """What is known of this process. A forked child finds another pid in it and stays silent."""

    def __init__(self, run: str, *, main: bool) -> None:
        self.run = run
        self.main = main
        self.pid = os.getpid()
        self.stacks = ""
        self.armed: Armed | None = None
        self.reported = False


_process: _Process | None = None


def begin() -> None:
    """Prepares this process. An interrupt that arrives meanwhile ends it as it would have ended Python."""
    global _process
    run = os.environ.get(RUN_VARIABLE, "")
    if _process is not None or not os.path.isdir(run):
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        _process = _Process(run, main=bool(os.environ.pop(MAIN_VARIABLE, "")))
        if _process.main:
            _catch_crashes(_process)
            if os.environ.get(LIFELINE_VARIABLE):
                _hold_lifeline()
        atexit.register(_finish)
        sys.meta_path.insert(0, _TorchWatch())
    finally:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)


class _TorchWatch:
    """Stands in front of the other finders until torch is asked for, arms capture, and steps aside."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        with suppress(ValueError):
            sys.meta_path.remove(self)
        _arm()
        # The loop over sys.meta_path that called us has already passed where capture's own finder now stands.
        from importlib.util import find_spec

        return find_spec(name)


def _arm() -> None:
    global _process
    if _process is None or _process.armed is not None:
        return  # a fork of a process that trains: capture itself decides what that one is
    if _process.pid != os.getpid():
        _process = _Process(_process.run, main=False)
    process = _process
    try:
        from pathlib import Path

        from brickprof.capture.arm import arm
        from brickprof.settings import Settings

        settings = Settings.from_json(os.environ.get(SETTINGS_VARIABLE) or "{}")
        process.armed = arm(Path(process.run), settings, main=process.main)
    except Exception as error:
        _note(process.run, f"capture could not start: {type(error).__name__}: {error}")
        return
    _catch_crashes(process)
    # Before the threads of the script are waited for: one that never ends must not hide the exception.
    with suppress(Exception):
        import threading

        threading._register_atexit(_report)  # type: ignore[attr-defined]


def _note(run: str, text: str) -> None:
    with suppress(Exception):
        from pathlib import Path

        from brickprof.journal import ProcessLog

        ProcessLog(Path(run)).event("note", 0, {"text": text, "pid": os.getpid()})


def _report() -> None:
    """Journals the exception that Python printed last, which at exit is the one that ended the script."""
    process = _process
    if process is None or process.reported or process.pid != os.getpid():
        return
    error = _last_error()
    if error is None:
        return
    process.reported = True
    with suppress(Exception):
        if process.armed is not None:
            process.armed.exception(error)
        elif process.main and not isinstance(error, KeyboardInterrupt):
            _journal_exception(process.run, error)


def _last_error() -> BaseException | None:
    error: Any = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _journal_exception(run: str, error: BaseException) -> None:
    """For a script that never got as far as torch."""
    from pathlib import Path

    from brickprof.capture.arm import describe_exception
    from brickprof.journal import ProcessLog

    ProcessLog(Path(run)).event("exception", 0, {**describe_exception(error), "pid": os.getpid()})


def _finish() -> None:
    process = _process
    if process is None or process.pid != os.getpid():
        return
    _report()
    if process.armed is not None:
        with suppress(Exception):
            process.armed.close()
        _keep_interrupted()
    if process.stacks:
        with suppress(OSError):
            if os.path.getsize(process.stacks) == 0:
                os.unlink(process.stacks)


def _keep_interrupted() -> None:
    """Python ends by SIGINT after an interrupt nobody caught, unless code was compiled since.

    Closing the journal may import something that does (dataclasses, named tuples). This says it again.
    """
    if isinstance(_last_error(), KeyboardInterrupt):
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def stacks_name(pid: int) -> str:
    return f"stacks-{pid}.txt"


def _catch_crashes(process: _Process) -> None:
    """Stacks of a crash go to a file of the run; a script that wants them on stderr gets its way."""
    if process.stacks:
        return
    path = os.path.join(process.run, stacks_name(process.pid))
    with suppress(OSError, ValueError, RuntimeError):
        low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        descriptor = raised(low)
        process.stacks = path
        if not faulthandler.is_enabled():
            faulthandler.enable(file=descriptor, all_threads=True)
        if DUMP_SIGNAL and signal.getsignal(DUMP_SIGNAL) is signal.SIG_DFL:
            faulthandler.register(DUMP_SIGNAL, file=descriptor, all_threads=True, chain=False)


def raised(descriptor: int) -> int:
    """``descriptor`` moved out of the way of the script's own; where the limit forbids it, as it was."""
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    except OSError:
        return descriptor
    os.close(descriptor)
    return high


def _hold_lifeline() -> None:
    from brickprof.capture import lifeline

    lifeline.hold()
