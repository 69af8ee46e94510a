"""Capture inside a trainer of one's own, and bricks of one's own.

Enters: optimizers that exist already, a place to write to. Leaves: a run folder like ``brickprof run``'s, and
nothing behind: when the attachment ends, every hook and patch is gone. (``brickprof.attach`` adds the diagnosis.)
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from brickprof.bricks import Brick, Kind
from brickprof.capture.arm import describe_exception
from brickprof.capture.desk import desk
from brickprof.capture.trace import PHASE
from brickprof.errors import OutputError
from brickprof.journal import ProcessLog, write_meta
from brickprof.journal.folders import new_run_folder, run_id_of
from brickprof.records import BUDGET, DECLARED, RunMeta
from brickprof.settings import Settings, terms_in_words

if TYPE_CHECKING:
    from brickprof.capture.session import Session


class Attachment:
    """Watches whatever trains in this process while it is open."""

    def __init__(self, model: Any, optimizers: list[Any], settings: Settings) -> None:
        self._model = model
        self._optimizers = optimizers
        self._settings = settings
        self._session: Session | None = None
        self._patched_here = False
        self.folder = _new_folder(settings)

    def __enter__(self) -> Self:
        try:
            self._begin()
        except Exception as error:  # a training that nobody watches is better than none
            with contextlib.suppress(Exception):
                text = f"nothing is recorded of process {os.getpid()}: {type(error).__name__}: {error}"
                ProcessLog(self.folder).event("note", 0, {"text": text})
            self._leave()
        return self

    def _begin(self) -> None:
        from brickprof.capture import hub, patches
        from brickprof.capture.claim import claim
        from brickprof.capture.session import Session

        self._patched_here = not patches.installed()
        patches.install()
        folder, about = claim(self.folder, self._settings)
        self._session = Session(folder, self._settings, about)
        hub.add(self._session)
        if hasattr(self._model, "parameters"):
            self._session.first_forward(self._model)
        for optimizer in self._optimizers:
            hub.send("optimizer_built", optimizer)
        patches.forget_first_call()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._session is not None:
            with contextlib.suppress(Exception):
                self._session.exception(describe_exception(error), error)
        self.close()

    def close(self) -> None:
        """Stops capture and leaves nothing behind; the run stays readable."""
        if self._session is not None:
            self._leave()
        self._model, self._optimizers = None, []

    def _leave(self) -> None:
        with contextlib.suppress(Exception):
            from brickprof.capture import hub, patches

            session, self._session = self._session, None
            if session is not None:
                hub.remove(session)
                with contextlib.suppress(Exception):
                    session.close()
            if self._patched_here and not hub.sessions:
                patches.uninstall()

    def flush(self) -> None:
        if self._session is not None:
            self._session.journal.flush()

    def __repr__(self) -> str:
        state = "recording" if self._session is not None else "finished"
        return f"<brickprof {state}: {self.folder}>"


def _new_folder(settings: Settings) -> Path:
    from brickprof import __version__

    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else "session"
    try:
        folder = new_run_folder(Path(settings.out), script)
        meta = RunMeta(
            run_id=run_id_of(folder),
            script=script,
            argv=tuple(sys.argv),
            started_ns=time.time_ns(),
            level=settings.level,
            version=__version__,
            source="attach",
            extra={"cwd": os.getcwd(), **terms_in_words(settings)},
        )
        write_meta(folder, meta)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write to {settings.out}: {reason}.", "Give another folder with out=...") from None
    return folder


class brick(contextlib.ContextDecorator):
    """Marks one's own code as a brick: ``with brick("sample"):`` or ``@brick("sample")``.

    ``budget_us`` is what it may take, in microseconds: its spans say how it fares, one that usually takes more than
    twice as long is a finding, and on a device one that takes more than four times as long has the next steps traced in
    full. Without a session that records, it costs a microsecond
    and does nothing.
    """

    def __init__(self, name: str, kind: str = "block", *, budget_us: float | None = None, **attributes: Any) -> None:
        self._name = name
        self._kind = Kind(kind)
        self._budget_us = budget_us
        if budget_us is not None:
            number = isinstance(budget_us, (int, float)) and not isinstance(budget_us, bool)
            if not (number and math.isfinite(budget_us) and budget_us > 0):
                raise ValueError(f"budget_us of brick {name!r} must be a positive number, not {budget_us!r}")
            attributes |= {BUDGET: budget_us, DECLARED: True}
        self._attributes = json.dumps(attributes, default=str) if attributes else None
        self._open: list[list[tuple[Session, int]]] = []

    def _recreate_cm(self) -> brick:
        return brick(self._name, self._kind, budget_us=self._budget_us)._with(self._attributes)

    def _with(self, attributes: str | None) -> brick:
        self._attributes = attributes
        return self

    def __enter__(self) -> brick:
        opened: list[tuple[Session, int]] = []
        hub = sys.modules.get("brickprof.capture.hub")
        if hub is not None and desk.stretch is not None:
            hub.settle()
        for session in hub.sessions if hub is not None else ():
            with contextlib.suppress(Exception):
                number = session.journal.brick(Brick(self._kind, self._name))
                if self._budget_us is not None:
                    session.budgets.declared.add(number, self._budget_us)
                opened.append((session, session.trace.open(number, PHASE["user"])))
        self._open.append(opened)
        return self

    def __exit__(self, *_: object) -> None:
        for session, number in self._open.pop():
            with contextlib.suppress(Exception):
                session.trace.close(number, write=True, attributes=self._attributes)
