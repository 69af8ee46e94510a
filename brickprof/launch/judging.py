"""Rules over a run that still goes on, in the supervisor, so that a broken one need not go on.

Enters: the folder of a run, looked at again and again. Leaves: the diagnosis so far. Only what is new is read; a look
that took long makes the next one wait, so that judging stays a small share of one core.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from brickprof.contracts.terms import Terms
from brickprof.diagnosis import Diagnosis, Doctor
from brickprof.journal import SAMPLES, SPANS, Damage, TableTail, Tail, rank_folders
from brickprof.records import Event
from brickprof.run.parts import Part, unpacked

_EVERY = 1.0
_SHARE = 0.1
"""Of one core, at most."""
_LONGEST = 15.0


class Judge:
    def __init__(self, folder: Path, terms: Terms) -> None:
        self._folder = folder
        self._doctor = Doctor(terms)
        self._tail = Tail(folder)
        self._tables: dict[Path, TableTail] = {}
        self._naming: dict[int, list[Event]] = {}
        self._next = 0.0

    def look(self, now: float) -> Diagnosis | None:
        """The diagnosis so far; None when it is not time for another look."""
        if now < self._next:
            return None
        began = time.process_time()
        self._take_in()
        diagnosis = self._doctor.diagnosis()
        self._next = now + min(max(_EVERY, (time.process_time() - began) / _SHARE), _LONGEST)
        return diagnosis

    def _take_in(self) -> None:
        for event in self._tail.poll():
            if event.kind in ("brick", "tensor"):
                self._naming.setdefault(event.rank, []).append(event)
            for each in unpacked(event):
                self._doctor.feed(each)
        for rank, folder in rank_folders(self._folder).items():
            self._take_rows(self._part(rank), folder)

    def _take_rows(self, part: Part, folder: Path) -> None:
        samples, spans = (self._new(folder / name) for name in (SAMPLES, SPANS))
        for sample in part.as_samples(samples, qualified=len(part.names.models) > 1) if samples is not None else ():
            self._doctor.feed(sample)
        for span in part.as_spans(spans) if spans is not None else ():
            self._doctor.feed(span)

    def _new(self, path: Path) -> Any:
        if path not in self._tables:
            self._tables[path] = TableTail(path)
        return self._tables[path].poll()

    def _part(self, rank: int) -> Part:
        """Names for the rows of a rank, as far as they have been given."""
        named = self._naming.get(rank, [])
        nothing = Damage("")
        return Part(rank, lambda: (named, nothing), lambda _name: (None, nothing))
