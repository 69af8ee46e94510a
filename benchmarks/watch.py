"""What watching costs: `python benchmarks/watch.py`, the share of one core that `brickprof watch` takes.

Enters: a size. Leaves: user and system time of the watcher and of its rules, by the second, at the four frames a second
that it draws on a terminal of 160 x 50: of a run that is being recorded, of a long one (by default 10,000 steps of 300
tensors) that is still being recorded, and of the same when it is over. Getting to know a long run is told apart.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import pty
import random
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import diagnosis  # noqa: E402

from brickprof.bricks import Brick, Kind  # noqa: E402
from brickprof.journal import Journal, rank_folder, write_meta  # noqa: E402
from brickprof.pulse import Pulse  # noqa: E402
from brickprof.records import ROLES, RunMeta  # noqa: E402

_TICKS = os.sysconf("SC_CLK_TCK")
_GRAD = ROLES.index("grad")
LIMIT = 0.05


def record(folder: Path, first: int, tensors: int, rate: float) -> None:
    """Goes on recording ``folder`` until it is killed: ``rate`` steps a second, gradients of every tenth."""
    if not (folder / "meta.json").exists():
        write_meta(folder, RunMeta("live", script="live.py", started_ns=time.time_ns()))
    rank = rank_folder(folder, 0)
    journal, pulse = Journal(rank, max_bytes=2**40), Pulse(rank)
    journal.event("run", 0, {"pid": os.getpid(), "host": os.uname().nodename, "coordinates": {}})
    bricks = [journal.brick(Brick(Kind.BLOCK, f"blocks.{i // 4}")) for i in range(tensors)]
    names = [journal.tensor(f"blocks.{i // 4}.w{i % 4}", {"model": "GPT", "brick": bricks[i]}) for i in range(tensors)]
    step, chance = first, random.Random(0)
    while True:
        now = time.time_ns()
        loss = 2 + math.exp(-step / 500) + 0.1 * math.sin(step)
        journal.event("loss", step, {"value": loss, "micro": 0})
        journal.event("clip", step, {"norm": 1.5, "max_norm": 5.0, "how": "norm", "tensors": tensors})
        journal.event("optimizer", step, {"optimizer": 0, "lr": [3e-4], "count": step + 1})
        if step % 10 == 0:
            for i in range(tensors):
                size = 10 ** (-1 - 2 * i / tensors) * chance.lognormvariate(0, 0.3)
                journal.sample((now + i, step, 0, bricks[i], names[i], _GRAD, 4096, 0, 0, size, 20 * size, 0.0, 0.0,
                                None, None, None, None))  # fmt: skip
            journal.flush()
        pulse.step, pulse.loss, pulse.norm, pulse.lr, pulse.step_ns = step, loss, 1.5, 3e-4, int(1e9 / rate)
        pulse.beat(now)
        step += 1
        time.sleep(1 / rate)


def cpu(pid: int) -> float:
    """Seconds of a process and of its children that have ended."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / _TICKS


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def drained(master: int, seconds: float) -> int:
    """Takes what the watcher draws, as a terminal would; how many bytes."""
    taken, until = 0, time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([master], [], [], left)[0]:
            try:
                taken += len(os.read(master, 2**16))
            except OSError:
                break
    return taken


def watched(folder: Path, warm: float, seconds: float) -> dict[str, float]:
    """CPU of a watcher on a terminal of its own: what it took to get going, and by the second after that."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    surroundings = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "brickprof", "watch", str(folder), "--stay"]
    watcher = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=surroundings, start_new_session=True
    )
    os.close(slave)
    try:
        drained(master, warm)
        rules = children(watcher.pid)
        first, first_rules = cpu(watcher.pid), sum(map(cpu, rules))
        drawn = drained(master, seconds)
        still = [pid for pid in rules if Path(f"/proc/{pid}").exists()]
        watching = (cpu(watcher.pid) - first) / seconds
        judging = (sum(map(cpu, still)) - first_rules) / seconds if still else 0.0
        return {
            "start_seconds": first + first_rules, "watcher": watching, "rules": judging, "total": watching + judging,
            "bytes_a_second": drawn / seconds,
        }  # fmt: skip
    finally:
        os.write(master, b"q")
        drained(master, 1.0)
        watcher.kill()
        watcher.wait()
        os.close(master)


def told(name: str, found: dict[str, float]) -> None:
    verdict = "within" if found["total"] < LIMIT else "OVER"
    print(
        f"{name}: {found['total']:.1%} of one core ({found['watcher']:.1%} watching, {found['rules']:.1%} rules), "
        f"{verdict} {LIMIT:.0%}; {found['bytes_a_second'] / 1000:.1f} kB/s drawn; "
        f"{found['start_seconds']:.1f} s of CPU to get going"
    )


def while_recorded(folder: Path, first: int, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--record", str(folder), "--first", str(first), "--rate", str(args.rate)]
    recorder = subprocess.Popen([*command, "--tensors", str(args.tensors)])
    try:
        time.sleep(2.0)
        return watched(folder, args.warm, args.seconds)
    finally:
        recorder.kill()
        recorder.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--rate", type=float, default=20.0, help="steps a second of the run that is being recorded")
    parser.add_argument(
        "--seconds", type=float, default=90.0, help="how long is measured: the rules on a long run judge about as often"
    )
    parser.add_argument("--warm", type=float, default=20.0, help="how long the watcher has to get going")
    parser.add_argument("--only", choices=("new", "long"), help="one of them only")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.record:
        record(args.record, args.first, args.tensors, args.rate)
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        if args.only != "long":
            results["new"] = while_recorded(Path(scratch) / "new", 0, args)
            told(f"a run being recorded ({args.rate:g} steps/s, {args.tensors} tensors)", results["new"])
        if args.only != "new":
            folder = Path(scratch) / "long"
            diagnosis.write(folder, args.steps, args.tensors, broken=False)
            size = f"{args.steps:,} steps x {args.tensors} tensors"
            results["over"] = watched(folder, args.warm, args.seconds)
            told(f"{size}, over", results["over"])
            results["long"] = while_recorded(folder, args.steps, args)
            told(f"{size}, still being recorded", results["long"])
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")
    return int(any(found["total"] >= LIMIT for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
