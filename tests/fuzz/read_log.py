"""Fuzzes the readers of logs: `python tests/fuzz/read_log.py [-max_total_time=600] [CORPUS]`; needs atheris.

Enters: bytes; the first one chooses a reader, or none. Leaves: nothing; an exception that is none of ours is a finding.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("This needs atheris: pip install atheris")

with atheris.instrument_imports(include=["brickprof.logs"]):
    from brickprof import logs
    from brickprof.errors import BrickprofError

NAMES = ("x.log", "x.json", "x.jsonl", "metrics.csv", "trainer_state.json", "events.out.tfevents.1.x", "x.wandb", "x")
READERS = [None, *sorted(logs.readers())]
FOLDER = tempfile.TemporaryDirectory(prefix="brickprof-fuzz-")


def read_one(data: bytes) -> None:
    if len(data) < 2:
        return
    file = Path(FOLDER.name) / NAMES[data[1] % len(NAMES)]
    file.write_bytes(data[2:])
    name = READERS[data[0] % len(READERS)]
    try:
        log = logs.read(file, None if name is None else logs.readers()[name])
    except BrickprofError:
        return
    log.frame()
    log.holds()


if __name__ == "__main__":
    atheris.Setup(sys.argv, read_one)
    atheris.Fuzz()
