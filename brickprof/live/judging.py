"""The rules over a run that goes on, in a process of their own.

Enters: the folder of a run. Leaves: the diagnosis so far, a line of JSON whenever it has changed. What lay there at the
start is read as columns, what comes later record by record. The process is nice, takes a small share of one core, and
ends with whoever started it.

    judge = JudgeProcess(folder)        judge.poll()   a new diagnosis, or None        judge.hurry()   look now
    judge.last_look()                   the run is over: one more look, then it ends   judge.close()
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from brickprof.diagnosis.model import Diagnosis
from brickprof.errors import BrickprofError
from brickprof.journal import PROCESS_RANK, Damage, TableTail, Tail, rank_folders, read_meta, schema
from brickprof.records import Event
from brickprof.run import Run
from brickprof.run.parts import Part, unpacked
from brickprof.settings import RUN_VARIABLE

_EVERY = 2.0
_SHARE = 0.015
"""Of one core, after the first look."""
_LONGEST = 300.0
_NICE = 15
_LOOK, _LAST = b"look\n", b"last\n"
_TABLES = ("samples", "spans")


class JudgeProcess:
    """The side of whoever watches. Nothing here waits or raises."""

    def __init__(self, folder: Path) -> None:
        self.failed = ""
        self.looks = 0
        self.pid = 0
        self._rest = b""
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env=environment(), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.failed = f"the rules could not be started: {error.strerror or error}"
            return
        self.pid = self._process.pid
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def poll(self) -> Diagnosis | None:
        """The newest diagnosis, when there is a new one."""
        if self._process is None or self._process.stdout is None:
            return None
        ended = self._process.poll() is not None
        *lines, self._rest = (self._rest + self._new(self._process.stdout.fileno())).split(b"\n")
        found: Diagnosis | None = None
        for line in lines:
            found = self._told(line) or found
        if ended and self._process.returncode and not self.failed:
            self.failed = "the rules failed"
        return found

    def hurry(self) -> None:
        self._say(_LOOK)

    def last_look(self) -> None:
        self._say(_LAST)

    def close(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def _new(self, descriptor: int) -> bytes:
        found = b""
        with contextlib.suppress(BlockingIOError, OSError):
            while block := os.read(descriptor, 2**20):
                found += block
        return found

    def _told(self, line: bytes) -> Diagnosis | None:
        try:
            told: dict[str, Any] = json.loads(line)
            if "error" in told:
                self.failed = str(told["error"])
                return None
            self.looks += 1
            return Diagnosis.from_dict(told)
        except (ValueError, BrickprofError):
            return None

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(word)
                self._process.stdin.flush()


def environment() -> dict[str, str]:
    """Ours, with brickprof importable wherever it was imported from, and not as a part of any run."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    kept = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
    # One thread: numpy's would take cores from the training.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **threads, "PYTHONPATH": os.pathsep.join([*paths, root])}


class Judging:
    """The process's own side: one doctor, fed with what is new."""

    def __init__(self, folder: Path) -> None:
        # Here, for whoever only starts this process and listens to it should not carry every rule.
        from brickprof.contracts.terms import Terms
        from brickprof.diagnosis import Doctor

        self._folder = folder
        self._meta = read_meta(folder)[0]
        self._doctor = Doctor(Terms.recorded(self._meta.extra))
        self._tail = Tail(folder)
        self._tables: dict[Path, TableTail] = {}
        self._naming: dict[int, list[Event]] = {}
        self._begun = False

    def look(self) -> Diagnosis:
        """The diagnosis of everything that has been written so far."""
        events = self._tail.poll()
        for event in events:
            if event.kind in ("brick", "tensor"):
                self._naming.setdefault(event.rank, []).append(event)
        if self._begun:
            self._go_on(events)
        else:
            self._begin(events)
        self._begun = True
        found = self._doctor.diagnosis()
        about = {"id": self._meta.run_id, "script": self._meta.script, "source": self._meta.source,
                 "level": self._meta.level, "folder": str(self._folder)}  # fmt: skip
        return replace(found, run=found.run | about)

    def _begin(self, events: list[Event]) -> None:
        """What lies there already, as a run that is over is read."""
        folders = rank_folders(self._folder)
        parts = {}
        for rank in sorted((PROCESS_RANK, *folders)):
            tables = {name: self._rows(folders[rank], name) for name in _TABLES if rank in folders}
            parts[rank] = _part(rank, [event for event in events if event.rank == rank], tables)
        self._doctor.read(Run(self._meta, parts))

    def _go_on(self, events: list[Event]) -> None:
        for event in events:
            for each in unpacked(event):
                self._doctor.feed(each)
        for rank, folder in rank_folders(self._folder).items():
            part = _part(rank, self._naming.get(rank, []), {name: self._rows(folder, name) for name in _TABLES})
            for sample in part.as_samples(part.samples[0], qualified=len(part.names.models) > 1):
                self._doctor.feed(sample)
            for span in part.as_spans(part.spans[0]):
                self._doctor.feed(span)

    def _rows(self, folder: Path, name: str) -> Any:
        path = folder / f"{name}.arrow"
        if path not in self._tables:
            self._tables[path] = TableTail(path)
        return self._tables[path].poll()


def _part(rank: int, events: list[Event], tables: dict[str, Any]) -> Part:
    """Events and rows in hand as a part of a run."""

    def table(name: str) -> tuple[Any, Damage]:
        found = tables.get(name)
        return schema(name).empty_table() if found is None else found, Damage("")

    return Part(rank, lambda: (events, Damage("")), table)


def main(folder: Path) -> None:
    """Looks, tells, waits for a word or for the time of the next look; ends when nobody listens."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    judging = Judging(folder)
    said, word, share = "", b"", 1.0  # the first look loads every rule: that is not what the next ones cost
    while True:
        began = time.process_time()
        try:
            told = json.dumps(judging.look().to_dict(), allow_nan=False, separators=(",", ":"))
        except Exception as error:  # of a rule, of a file: the screen goes on without
            told = json.dumps({"error": f"the rules stopped: {type(error).__name__}: {error}"[:300]})
            word = _LAST
        if told != said or word:
            print(told, flush=True)
        said = told
        if word == _LAST:
            return
        word = _next_word(min(max(_EVERY, (time.process_time() - began) / share), _LONGEST))
        share = _SHARE


def _next_word(seconds: float) -> bytes:
    """What was said meanwhile; the process ends here when its starter is gone."""
    if not select.select([0], [], [], seconds)[0]:
        return b""
    words = os.read(0, 4096)
    if not words:
        sys.exit(0)
    return _LAST if _LAST in words else _LOOK


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main(Path(sys.argv[1]))
