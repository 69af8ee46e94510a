"""The four ways in that are functions: ``attach``, ``load``, ``diagnose`` and ``analyze``.

Enters: a model in training, a folder, a Run, logs. Leaves: a ``Session``, a ``Run``, a ``Diagnosis``.

    with brickprof.attach(model, optimizer, out="runs") as bp:
        train(model, optimizer)
    print(bp.diagnose())
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brickprof import settings
from brickprof.capture.attach import Attachment

if TYPE_CHECKING:
    from brickprof.diagnosis import Diagnosis
    from brickprof.diagnosis.several import Diagnoses
    from brickprof.run import Run


class Session(Attachment):
    """An open attachment; ``folder`` is the run's own, ``diagnose()`` says what was seen."""

    def __init__(self, model: Any, optimizers: list[Any], chosen: settings.Settings, tracer_provider: Any) -> None:
        super().__init__(model, optimizers, chosen)
        self._provider = tracer_provider

    def close(self) -> None:
        was_open = self._session is not None
        super().close()
        if was_open:
            self._conclude()

    def _conclude(self) -> None:
        """What a supervisor does when a run ends: the diagnosis beside the journal, the spans to where they go."""
        with contextlib.suppress(Exception):  # the training is over; what was recorded can still be read
            from brickprof.diagnosis.saving import write

            self.flush()
            run = load(self.folder)
            write(diagnose(run), self.folder, run)
        if self._provider is not None:
            with contextlib.suppress(Exception):
                from brickprof.telemetry import export_to_provider

                export_to_provider(self.folder, self._provider)

    def diagnose(self) -> Diagnosis:
        """The diagnosis of what was recorded so far, or of the whole run once it ended."""
        self.flush()
        return diagnose(self.folder)


def attach(
    model: Any,
    optimizer: Any = None,
    *,
    out: str | os.PathLike[str] | None = None,
    level: str | None = None,
    overhead: str | float | None = None,
    deep_at: int | None = None,
    sync_check: bool | None = None,
    tracer_provider: Any = None,
) -> Session:
    """Watches ``model`` and ``optimizer`` (one, or a list) while the returned context is open.

    ``out`` is the folder that will hold the run's own folder (default ``brickprof-runs``); ``level`` is light,
    standard or deep; ``overhead`` is the share of the step time that may be spent ("1%"; unless it is said, 1 %, and
    0.3 % at level light); around step ``deep_at`` everything is captured; ``sync_check`` looks for missing syncs on a
    GPU, as level deep does. Spans also go to ``tracer_provider`` when the run ends. Everything that trains in this
    process meanwhile is recorded: other models and optimizers are found by themselves.
    """
    from brickprof.contracts.terms import Terms

    optimizers = [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    where = None if out is None else os.fspath(out)
    asked = {"out": where, "level": level, "overhead": overhead, "deep_at": deep_at, "sync_check": sync_check}
    chosen = settings.load(asked)
    Terms.of(chosen)  # says so now, should one of them be misspelt
    return Session(model, optimizers, chosen, tracer_provider)


def load(path: str | os.PathLike[str]) -> Run:
    """A recorded run: its folder, a folder that holds one, or the end of its id."""
    from brickprof.run import Run

    return Run.open(Path(path))


def diagnose(run: Run | str | os.PathLike[str]) -> Diagnosis:
    """What a run's records say: a ``Diagnosis`` that prints well and is plain data."""
    from brickprof.diagnosis import diagnose as judge
    from brickprof.run import Run

    return judge(run if isinstance(run, Run) else load(run))


def analyze(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: str = "",
    pattern: str = "",
    thresholds: Mapping[str, float] | None = None,
    jobs: int = 1,
) -> Diagnosis | Diagnoses:
    """What became of trainings, from the logs they left: files, folders, globs, packed or not.

    One ``Diagnosis`` where they tell of one run, a list where they tell of several (a table in a notebook, and
    ``.to_frame()``); what cannot be read is left out as long as something can. ``Run.from_log(path)`` has the numbers
    as DataFrames. ``jobs`` above one starts processes: a script that does that needs its
    ``if __name__ == "__main__"``.
    """
    from brickprof.analysis import Options, analyse, engines
    from brickprof.diagnosis.several import Diagnoses
    from brickprof.errors import UnreadableInput

    named = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    with engines.engine(jobs=jobs) as engine:
        found = analyse(named, Options(format, pattern, thresholds or {}), engine)
    if not found.runs:
        first = found.problems[0] if found.problems else None
        raise UnreadableInput(first.message if first else "there is no log here.", first.hint if first else "")
    return found.runs[0].diagnosis if len(found.runs) == 1 else Diagnoses(run.diagnosis for run in found.runs)
