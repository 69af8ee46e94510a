"""Missing syncs: memory that is used while a copy or another stream is still at it.

Enters: everything that the script does on streams and with pinned memory, where ``--sync-check`` or ``--level deep``
asks for it and there is a GPU. Leaves: a ``race`` event for each pair of the user's lines, again when its count has
doubled, and ``sync_check`` events that say how much was looked at, or that it never began: nothing found among nothing
is no pass.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from brickprof.capture.pending.watch import Watch
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session


class PendingProbe(Probe):
    name = "pending"
    every_step = ("step_begin",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._watch: Watch | None = None
        self._due = 1
        if not _asked_for(session):
            return
        self._watch = Watch(self._found, self._stumbled, lambda ns: session.charge_apart(self.name, ns))
        if not self._watch.start() and not torch.cuda.is_initialized():
            torch.cuda._lazy_call(self._ready)

    def _ready(self) -> None:
        """CUDA is about to be there; an error here would be the script's."""
        with contextlib.suppress(Exception):
            if self._watch is not None and not self.session.closed:
                self._watch.start(ready=True)

    def _stumbled(self, error: Exception) -> None:
        self._looked()
        self.session.failed(self.name, error)

    def models_found(self) -> None:
        if self._watch is not None:
            self._watch.start()

    def step_begin(self, step: int) -> None:
        if self._watch is None:
            return
        self._watch.start()
        if step >= self._due:
            self._due = 2 * step
            self._looked()

    def close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is None:
            return
        observer = watch.observer
        watch.stop()
        self._tell(observer)
        if observer is None and torch.cuda.is_initialized():
            self.session.fact("sync_check", {"began": False}, always=True)

    def _found(self, fields: dict[str, Any]) -> None:
        self.session.fact("race", fields, always=True)

    def _looked(self) -> None:
        if self._watch is not None:
            self._tell(self._watch.observer)

    def _tell(self, observer: Any) -> None:
        """How much was looked at so far."""
        if observer is None:
            return
        fields = {
            "copies": observer.copies, "launches": observer.clocks.launched, "waits": observer.clocks.waited,
            "streams": observer.clocks.streams, "pairs": len(observer.races), "dropped": observer.races.dropped,
            "whole": not observer.broken, "hears_questions": observer.hears_questions, "replays": observer.replays,
            "kernels": observer.kernels, "astray": observer.astray, "doubtful": observer.ledger.doubtful,
        }  # fmt: skip
        self.session.fact("sync_check", fields, always=True)


def _asked_for(session: Session) -> bool:
    """Between ranks torch's trace is called from threads of the collectives too: only where somebody asks for that."""
    if session.settings.sync_check:
        return True
    return session.settings.level == "deep" and os.environ.get("WORLD_SIZE", "1") in ("", "1")
