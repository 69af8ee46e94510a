"""The processes of the overhead benchmark: all alive at once, one of them stepping at a time.

Enters: command lines that end up running train_case.py. Leaves: seconds per block of steps. Whoever has no
token sleeps in a socket read, so that clock drift and noisy neighbours hit every variant alike; they may be kept to
the same few cores, since on a rented machine one core is quicker than another for as long as a process lives there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAIN_CASE = ROOT / "benchmarks" / "train_case.py"
START_SECONDS = 120
BLOCK_SECONDS = 900


@contextlib.contextmanager
def kept_to(count: int) -> Iterator[list[int]]:
    """Keeps this process, and those it starts meanwhile, to ``count`` cores: the last ones, since the first serve the
    interrupts, and one thread of each. None where that cannot be done, or would leave nothing out."""
    everywhere = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set()
    apart: dict[str, int] = {}
    for core in sorted(everywhere):
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        apart.setdefault(siblings.read_text() if siblings.exists() else str(core), core)
    if not 0 < count < len(apart):
        yield []
        return
    cores = list(apart.values())[-count:]
    os.sched_setaffinity(0, cores)
    try:
        yield cores
    finally:
        os.sched_setaffinity(0, everywhere)


@dataclass(frozen=True)
class Variant:
    """One way of running the same training."""

    name: str
    level: str = ""
    peer: str = "none"

    def command(self, case: str, address: Path, out: Path) -> list[str]:
        script = [str(TRAIN_CASE), "--case", case, "--peer", self.peer, "--socket", str(address)]
        if not self.level:
            return [sys.executable, *script]
        return [sys.executable, "-m", "brickprof", "run", "--level", self.level, "-o", str(out), *script]


@dataclass(frozen=True)
class Block:
    """Seconds of one block of steps."""

    wall: float
    cpu: float
    own: float = 0.0
    """What brickprof says that it took of them, on the thread that trains and on the one that writes."""


class Worker:
    """A process that is being started; it steps once it is ``ready``."""

    def __init__(self, variant: Variant, case: str, folder: Path) -> None:
        self.variant = variant
        self.out = folder / "runs"
        self.log = folder / "log"
        folder.mkdir(parents=True)
        address = folder / "socket"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        self._listener.listen(1)
        self._listener.settimeout(1.0)
        self._channel: socket.socket | None = None
        self.process = self._start(variant.command(case, address, self.out))

    def ready(self) -> None:
        """Waits until it could step."""
        with self._listener as listener:
            self._channel = self._accept(listener)
        self._channel.settimeout(BLOCK_SECONDS)
        self._stream = self._channel.makefile("rw")

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self.log.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"},
                start_new_session=True,  # they end with the stream, and not with whoever is told to end
            )

    def _accept(self, listener: socket.socket) -> socket.socket:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                return listener.accept()[0]
            except TimeoutError:
                continue
        self.process.terminate()
        raise self._failure("did not start")

    def run(self, steps: int) -> Block:
        """What ``steps`` steps took."""
        self._stream.write(json.dumps({"steps": steps}) + "\n")
        self._stream.flush()
        line = self._stream.readline()
        if not line:
            raise self._failure("died")
        return Block(**json.loads(line))

    def close(self) -> None:
        """Ends the stream, which ends the training; waits for the supervisor's last words."""
        if self._channel is None:
            self._listener.close()
            self.process.terminate()
        else:
            self._stream.close()
            self._channel.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # what it has started too
            self.process.wait()

    def _failure(self, what: str) -> RuntimeError:
        tail = self.log.read_text(errors="replace")[-2000:]
        return RuntimeError(f"the worker {self.variant.name!r} {what}:\n{tail}")
