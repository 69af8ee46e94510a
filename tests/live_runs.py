"""Runs that are being recorded while a test looks at them: a process that writes a journal and beats a pulse on demand.

Enters: a folder. Leaves: a ``Recorder``, told line by line what to record; it is a process, so it can be killed.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import launching
from making import NAN, Made

from brickprof.journal import ProcessLog, write_meta
from brickprof.records import RunMeta

JUDGED = 120.0
"""Seconds that the rules have: their process is nice, and gets little of a machine whose cores are all busy."""

UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
HOSTILE = "<script>\x1b[31m\x9b2J\u202e\ud800" + "x" * 10_000
"""What no terminal may be sent, and a name that tries to."""

PROGRAM = r"""
import math, os, sys, time
from pathlib import Path
from brickprof.bricks import Brick, Kind
from brickprof.journal import Journal, rank_folder
from brickprof.pulse import Pulse
from brickprof.records import ROLES

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
home = rank_folder(folder, rank)
home.mkdir(parents=True, exist_ok=True)
journal, pulse = Journal(home), Pulse(home)
journal.event("run", 0, {"pid": os.getpid(), "host": os.uname().nodename, "coordinates": {"dp": rank}, "rank": rank})
blocks = ["embed", "blocks.0", "blocks.1", "head"]
bricks = [journal.brick(Brick(Kind.BLOCK, name, "Net")) for name in blocks]
names = [journal.tensor(f"{n}.weight", {"model": "Net", "brick": b, "trainable": True}) for n, b in zip(blocks, bricks)]
step = 0

def one(loss):
    global step
    now = time.time_ns()
    bad = not math.isfinite(loss)
    journal.event("loss", step, {"value": loss, "micro": 0})
    journal.event("optimizer", step, {"optimizer": 0, "lr": [1e-3], "count": step + 1})
    for i, (brick, name) in enumerate(zip(bricks, names)):
        size = math.nan if bad else 0.01 * (i + 1)
        numbers = 64, 7 if bad else 0, 0, size, size, 0.0, 0.0
        journal.sample((now + i, step, 0, brick, name, ROLES.index("grad"), *numbers, None, None, None, None))
    journal.flush()
    pulse.step, pulse.loss, pulse.norm, pulse.lr, pulse.step_ns = step, loss, 0.5, 1e-3, 20_000_000
    pulse.beat(now)
    step += 1

print("ready", flush=True)
for line in sys.stdin:
    word, _, number = line.partition(" ")
    for _ in range(int(number or 1)):
        if word.strip() == "step":
            one(3.0 / (1 + step / 10))
        elif word.strip() == "nan":
            one(math.nan)
    if word.strip() == "end":
        journal.event("exit", step, {"steps": step})
        journal.close()
        pulse.state = 2
        pulse.beat(time.time_ns())
        break
    print("done", flush=True)
"""


class Recorder:
    """A training process that does what it is told."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=launching.environment(),
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, words: str) -> None:
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        if words != "end":
            assert self.process.stdout.readline() == "done\n"
        else:
            self.process.wait(timeout=20)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


def broken() -> Made:
    made = Made("embed", "blocks.0", "blocks.1", "head")
    made.owned()
    made.event("start", 0, rank=-1, pid=1)
    for step in range(20):
        made.event("sampled", step, roles=["grad"])
        for place, block in enumerate(made.numbers):
            made.sample("grad", step, block, l2=10.0 ** (place - 2 + step / 10))
        made.step(step, loss=NAN if step > 17 else 3.0 - step / 10)
    made.event("exited", 20, rank=-1, pid=1, code=1, text="the script exited 1", seconds=9.0)
    return made


def new_run(home: Path, name: str = "train-20261116-0700-k3f9", source: str = "attach") -> Path:
    folder = home / name
    folder.mkdir(parents=True)
    meta = RunMeta(name[-4:], "train.py", started_ns=time.time_ns(), source=source, host=os.uname().nodename)
    write_meta(folder, meta)
    return folder


def launched(folder: Path, pid: int) -> ProcessLog:
    """What a supervisor writes when it has started a script."""
    log = ProcessLog(folder)
    log.event("start", 0, {"pid": pid, "supervisor": os.getpid(), "script": "train.py"})
    return log


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything in a folder: to see whether somebody has written into it."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_size, path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    } | {".": (0, folder.stat().st_mtime_ns, b"")}  # fmt: skip
