"""Gets a process ready to be watched, before it has done anything.

Enters: a run's folder and its settings. Leaves: an import hook that patches torch when, and if, the script
imports it. No torch is imported here, no file is written, and a process that never trains never is seen.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from brickprof.settings import Settings

if TYPE_CHECKING:
    from brickprof.capture.session import Session

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_FRAMES = 40


class Armed:
    """The handle of an armed process."""

    def __init__(self, run: Path, settings: Settings, *, main: bool) -> None:
        self.run = run
        self.settings = settings
        self.main = main

    def start(self) -> None:
        if "torch" in sys.modules:
            self._torch_is_here()
        else:
            sys.meta_path.insert(0, _AfterImport("torch", self._torch_is_here))

    def _torch_is_here(self) -> None:
        with contextlib.suppress(Exception):  # a torch that we do not understand is left alone
            from brickprof.capture import hub, patches

            hub.remember(self._session)
            hub.set_factory(self._session)
            patches.install()

    def _session(self) -> Session | None:
        from brickprof.capture.claim import claim
        from brickprof.capture.session import Session

        try:
            folder, about = claim(self.run, self.settings)
            session = Session(folder, self.settings, about)
        except Exception as error:
            self._note(f"nothing is recorded of process {os.getpid()}: {type(error).__name__}: {error}")
            return None
        # Worker processes of torch.multiprocessing leave by os._exit, past atexit.
        from multiprocessing import util

        util.Finalize(session, session.close, exitpriority=100)
        return session

    def exception(self, error: BaseException) -> None:
        """Journals the exception that ends the script."""
        with contextlib.suppress(Exception):
            fields = describe_exception(error)
            hub = sys.modules.get("brickprof.capture.hub")
            sessions = list(hub.sessions) if hub is not None else []
            for session in sessions:
                session.exception(fields, error)
            if not sessions:
                self._to_process_journal(fields)

    def _to_process_journal(self, fields: dict[str, Any]) -> None:
        from brickprof.journal import ProcessLog

        ProcessLog(self.run).event("exception", 0, fields)

    def _note(self, text: str) -> None:
        from brickprof.journal import ProcessLog

        ProcessLog(self.run).event("note", 0, {"text": text})

    def close(self) -> None:
        """The last flush; harmless when repeated."""
        hub = sys.modules.get("brickprof.capture.hub")
        for session in list(hub.sessions) if hub is not None else []:
            with contextlib.suppress(Exception):
                session.close()


def arm(run: Path, settings: Settings, *, main: bool) -> Armed:
    """Arms this process for ``run``; ``main`` is the process that the supervisor started itself."""
    armed = Armed(run, settings, main=main)
    armed.start()
    atexit.register(armed.close)
    return armed


def describe_exception(error: BaseException) -> dict[str, Any]:
    """What an exception says, in plain data: our own frames and torch's wrappers of us left out."""
    frames = [
        {"file": frame.filename, "line": frame.lineno, "function": frame.name, "text": frame.line or ""}
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_PACKAGE)
    ]
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "message": str(error),
        "frames": frames[-_FRAMES:],
        "code": getattr(error, "code", None) if isinstance(error, SystemExit) else None,
    }


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls ``then`` once, right after module ``name`` was imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(importlib.abc.Loader):
    """The module's own loader, with a call behind it."""

    def __init__(self, inner: Any, then: Callable[[], None]) -> None:
        self._inner = inner
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._inner.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._then()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
