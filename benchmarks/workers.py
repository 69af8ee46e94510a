"""The processes of the overhead benchmark: all alive at once, one of them stepping at a time.

Enters: command lines that end up running train_case.py. Leaves: seconds per block of steps. Whoever has no
token sleeps in a socket read, so that clock drift and noisy neighbours hit every variant alike.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAIN_CASE = ROOT / "benchmarks" / "train_case.py"
START_SECONDS = 120
BLOCK_SECONDS = 900


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
    def __init__(self, variant: Variant, case: str, folder: Path) -> None:
        self.variant = variant
        self.out = folder / "runs"
        self.log = folder / "log"
        folder.mkdir(parents=True)
        address = folder / "socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            listener.listen(1)
            listener.settimeout(1.0)
            self.process = self._start(variant.command(case, address, self.out))
            self.channel = self._accept(listener)
        self.channel.settimeout(BLOCK_SECONDS)
        self.stream = self.channel.makefile("rw")

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self.log.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": path},
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
        self.stream.write(json.dumps({"steps": steps}) + "\n")
        self.stream.flush()
        line = self.stream.readline()
        if not line:
            raise self._failure("died")
        return Block(**json.loads(line))

    def close(self) -> None:
        """Ends the stream, which ends the training; waits for the supervisor's last words."""
        self.stream.close()
        self.channel.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _failure(self, what: str) -> RuntimeError:
        tail = self.log.read_text(errors="replace")[-2000:]
        return RuntimeError(f"the worker {self.variant.name!r} {what}:\n{tail}")
