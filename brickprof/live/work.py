"""Reports and comparisons of the server, each made in a process of its own and kept until its runs grow.

Enters: what to make, of which folders, and how far those have grown. Leaves: bytes. A process, because a report of a
long run takes seconds and memory that a server should not carry, and because it must not stop the pages.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brickprof.journal import EVENTS, PROCESS, SAMPLES, SPANS, rank_folders
from brickprof.live.judging import environment

_SECONDS = 300.0
_GOOD_FOR = 30.0
_AT_ONCE = 2
_MOST_KEPT = 16
_NICE = 10

Sizes = tuple[tuple[str, int], ...]


class Failed(Exception):
    """Says in one sentence why something could not be made."""


@dataclass(slots=True)
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)
    sizes: tuple[Sizes, ...] = ()
    made: bytes | None = None
    when: float = 0.0


class Work:
    def __init__(self) -> None:
        self.made = 0
        """How often a process was started."""
        self._kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()
        self._lock = threading.Lock()
        self._room = threading.Semaphore(_AT_ONCE)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def report(self, folder: Path) -> bytes:
        """The page of a run."""
        return self._of(0.0, "report", folder)

    def comparison(self, a: Path, b: Path) -> bytes:
        """JSON: where two runs part. A page asks every few seconds: while they grow, an answer is good for a while."""
        return self._of(_GOOD_FOR, "compare", a, b)

    def close(self) -> None:
        """Ends what is being made: nobody waits for it any more."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def _of(self, good_for: float, what: str, *folders: Path) -> bytes:
        key = (what, *map(str, folders))
        asked = time.monotonic()
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        with kept.lock:  # who asks for the same thing at the same time waits for it
            sizes = tuple(map(grown, folders))
            old = time.monotonic() - kept.when >= good_for and kept.when < asked
            if kept.made is None or (kept.sizes != sizes and old):
                with self._room:
                    kept.made, kept.sizes, kept.when = self._worked(key), sizes, time.monotonic()
            return kept.made

    def _worked(self, key: tuple[str, ...]) -> bytes:
        self.made += 1
        try:
            process = self._started(key)
        except OSError as error:
            raise Failed(error.strerror or str(error)) from None
        try:
            said = _heard(process)
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode:
            raise Failed(said.decode("utf-8", "replace")[:500] or "it could not be made")
        return said

    def _started(self, key: tuple[str, ...]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise Failed("the server is closed")
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, *key], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env=environment(), start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
            return process


def _heard(process: subprocess.Popen[bytes]) -> bytes:
    """All that ``process`` says; it is over then, whatever happens here."""
    with process:
        try:
            return process.communicate(timeout=_SECONDS)[0]
        except subprocess.TimeoutExpired:
            raise Failed(f"it took more than {_SECONDS:.0f} s") from None
        finally:
            process.kill()


def grown(folder: Path) -> Sizes:
    """How far the journal of a run has grown."""
    ranks = rank_folders(folder).values()
    files = [folder / PROCESS, *(rank / name for rank in ranks for name in (EVENTS, SAMPLES, SPANS))]
    found = []
    for file in files:
        with contextlib.suppress(OSError):
            found.append((f"{file.parent.name}/{file.name}", file.stat().st_size))
    return tuple(found)


# -- the process itself


def _report(folder: str) -> str:
    from rich.console import Console

    from brickprof import plugins
    from brickprof.diagnosis import diagnosed
    from brickprof.run import Run

    module: Any = plugins.load("brickprof.reports", "html")
    run = Run.open(folder)
    text = io.StringIO()
    module.REPORT(
        diagnosed(run), Console(file=text, width=110), *([run] if getattr(module, "NEEDS_RUN", False) else [])
    )
    return text.getvalue()


def _compare(a: str, b: str) -> str:
    from brickprof.diagnosis.compare import compare
    from brickprof.errors import BrickprofError
    from brickprof.reports.live.parting import parting
    from brickprof.run import Run

    try:
        return json.dumps(parting(compare(Run.open(a), Run.open(b))), allow_nan=False)
    except BrickprofError as error:
        return json.dumps({"error": str(error)})


def main(what: str, *folders: str) -> int:
    from brickprof.errors import BrickprofError

    with contextlib.suppress(OSError):
        os.nice(_NICE)
    try:
        made = _report(*folders) if what == "report" else _compare(*folders)
    except BrickprofError as error:
        made, code = str(error), 1
    except Exception as error:
        made, code = f"{type(error).__name__}: {error}", 1
    else:
        code = 0
    sys.stdout.buffer.write(made.encode("utf-8", "replace"))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
