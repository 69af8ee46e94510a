"""Capture for a piece of code in a process that goes on behind it: a cell of a notebook.

Enters: settings and a name. Leaves: a run's folder like ``brickprof run``'s, and nothing behind: when the cell ends,
every hook, patch and finder is gone. It is given no model: the process is armed as that of a recorded script is (see
``brickprof.capture.arm``), so whatever trains is found by itself, wherever it was built, in forked ranks too.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from brickprof.capture.arm import Armed, describe_exception
from brickprof.errors import OutputError
from brickprof.journal import write_meta
from brickprof.journal.folders import new_run_folder, run_id_of
from brickprof.records import RunMeta
from brickprof.settings import Settings, terms_in_words

if TYPE_CHECKING:
    from brickprof.capture.session import Session


class Cell(Armed):
    """Watches whatever trains in this process while it is open; ``run`` is the folder."""

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(_new_folder(settings, name), settings, main=False)
        self._sessions: list[Session] = []
        self._finders: list[Any] = []
        self._before: tuple[Any, Any] | None = None
        """Who would have recorded this process, and its forks, had there been no cell."""
        self._patched_here = False

    def __enter__(self) -> Self:
        before = list(sys.meta_path)
        self.start()
        self._finders = [finder for finder in sys.meta_path if finder not in before]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.exception(error)
        self.close()

    def exception(self, error: BaseException) -> None:
        """Journals the exception that ended the cell."""
        with contextlib.suppress(Exception):
            fields = describe_exception(error)
            for session in self._sessions:
                session.exception(fields, error)
            if not self._sessions:
                self._to_process_journal(fields)

    def close(self) -> None:
        """Stops capture and leaves nothing behind; the run stays readable."""
        for finder in self._finders:  # torch never came
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(finder)
        if self._before is None:
            return
        from brickprof.capture import hub, patches

        (factory, rearm), self._before = self._before, None
        hub.set_factory(factory)
        hub.remember(rearm or _nobody)
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            hub.remove(session)
            with contextlib.suppress(Exception):  # the cell is over, and went well or not by itself
                session.close()
        if self._patched_here and not hub.sessions:
            patches.uninstall()
        elif factory is None:
            patches.forget_first_call()

    def _torch_is_here(self) -> None:
        with contextlib.suppress(Exception):
            from brickprof.capture import hub, patches

            self._before = hub._factory, hub._rearm
            self._patched_here = not patches.installed()
            super()._torch_is_here()
            patches.watch_first_call()  # also where somebody else had put the patches in, and found his model

    def _session(self) -> Session | None:
        session = super()._session()
        if session is not None:
            self._sessions.append(session)
        return session


def _nobody() -> None:
    """A fork of a notebook that trains is nobody's run."""


def _new_folder(settings: Settings, name: str) -> Path:
    from brickprof import __version__

    try:
        folder = new_run_folder(Path(settings.out), name)
        meta = RunMeta(
            run_id=run_id_of(folder),
            script=name,
            started_ns=time.time_ns(),
            level=settings.level,
            version=__version__,
            source="notebook",
            extra=terms_in_words(settings),
        )
        write_meta(folder, meta)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write to {settings.out}: {reason}.", "Give another folder with --out DIR.") from None
    return folder
