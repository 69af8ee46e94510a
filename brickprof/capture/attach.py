"""Capture inside a trainer of one's own, and bricks of one's own.

Enters: a model, its optimizers, a place to write to. Leaves: a run folder like ``brickprof run``'s, and nothing
behind: when the block ends, every hook and patch is gone.

    with brickprof.attach(model, optimizer, out="runs") as bp:
        train(model, optimizer)
    print(bp.diagnose())
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from brickprof.bricks import Brick, Kind
from brickprof.capture.arm import describe_exception
from brickprof.capture.trace import PHASE
from brickprof.errors import OutputError
from brickprof.records import RunMeta
from brickprof.settings import Settings, load

if TYPE_CHECKING:
    from brickprof.capture.session import Session



class Attached:
    """An attached capture: a context manager; ``folder`` is the run's, ``diagnose()`` reads it back."""

    def __init__(self, model: Any, optimizer: Any, settings: Settings, tracer_provider: Any) -> None:
        self._model = model
        self._optimizers = _several(optimizer)
        self._settings = settings
        self._provider = tracer_provider
        self._session: Session | None = None
        self._patched_here = False
        self.folder = _new_folder(Path(settings.out))

    def __enter__(self) -> Attached:
        from brickprof.capture import hub, patches
        from brickprof.capture.claim import claim
        from brickprof.capture.session import Session

        self._patched_here = not patches.installed()
        patches.install()
        folder, about = claim(self.folder, self._settings)
        self._session = Session(folder, self._settings, about)
        hub.add(self._session)
        self._session.first_forward()
        for optimizer in self._optimizers:
            hub.send("optimizer_built", optimizer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._session is not None:
            self._session.exception(describe_exception(error))
        self.close()

    def close(self) -> None:
        """Stops capture and leaves nothing behind; the run stays readable."""
        from brickprof.capture import hub, patches

        session, self._session = self._session, None
        if session is None:
            return
        hub.remove(session)
        session.close()
        if self._patched_here and not hub.sessions:
            patches.uninstall()
        self._finish()

    def _finish(self) -> None:
        """What the supervisor does after a run: the diagnosis beside the journal, spans to the provider."""
        from brickprof.launch.finish import write_diagnosis

        with contextlib.suppress(Exception):
            write_diagnosis(self.folder)
        if self._provider is not None:
            from brickprof.telemetry import export_to_provider

            with contextlib.suppress(Exception):
                export_to_provider(self.folder, self._provider)

    def diagnose(self) -> Any:
        """The diagnosis of what was recorded so far (or of the whole run, once it ended)."""
        from brickprof.diagnosis import diagnose
        from brickprof.run import Run

        if self._session is not None:
            self._session.journal.flush()
        return diagnose(Run.open(self.folder))

    def __repr__(self) -> str:
        state = "recording" if self._session is not None else "finished"
        return f"<brickprof {state}: {self.folder}>"


def attach(
    model: Any,
    optimizer: Any = None,
    *,
    out: str | os.PathLike[str] | None = None,
    level: str | None = None,
    overhead: str | float | None = None,
    tracer_provider: Any = None,
) -> Attached:
    """Watches ``model`` and ``optimizer`` (or several) while the returned context is open.

    ``out`` is the folder that will hold the run's own folder (default ``brickprof-runs``); ``level`` is light,
    standard or deep; ``overhead`` is the share of the step time that may be spent; spans also go to
    ``tracer_provider`` when the run ends. Everything that trains in this process meanwhile is recorded.
    """
    chosen = {"out": None if out is None else os.fspath(out), "level": level, "overhead": overhead}
    return Attached(model, optimizer, load(chosen), tracer_provider)


def _several(optimizer: Any) -> list[Any]:
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]


def _new_folder(out: Path) -> Path:
    from brickprof import __version__
    from brickprof.journal import new_run_folder, write_meta

    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else "session"
    try:
        folder = new_run_folder(out, script)
        write_meta(
            folder,
            RunMeta(
                run_id=folder.name, script=script, argv=tuple(sys.argv), started_ns=time.time_ns(),
                version=__version__, source="attach",
            ),
        )  # fmt: skip
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror}.", "Give another folder with out=...") from None
    return folder


class brick(contextlib.ContextDecorator):  # noqa: N801 - reads as a word of the language
    """Marks one's own code as a brick: ``with brick("sample"):`` or ``@brick("sample")``.

    Without a session that records, it costs a microsecond and does nothing.
    """

    def __init__(self, name: str, kind: str = "block", **attributes: Any) -> None:
        self._name = name
        self._kind = Kind(kind)
        self._attributes = json.dumps(attributes, default=str) if attributes else None
        self._open: list[list[tuple[Session, int]]] = []

    def _recreate_cm(self) -> brick:
        return brick(self._name, self._kind)._with(self._attributes)

    def _with(self, attributes: str | None) -> brick:
        self._attributes = attributes
        return self

    def __enter__(self) -> brick:
        opened: list[tuple[Session, int]] = []
        hub = sys.modules.get("brickprof.capture.hub")
        for session in hub.sessions if hub is not None else ():
            with contextlib.suppress(Exception):
                number = session.journal.brick(Brick(self._kind, self._name))
                opened.append((session, session.trace.open(number, PHASE["user"])))
        self._open.append(opened)
        return self

    def __exit__(self, *_: object) -> None:
        for session, number in self._open.pop():
            with contextlib.suppress(Exception):
                session.trace.close(number, write=session.on.facts, attributes=self._attributes)
