"""The log of the launch: ``process.jsonl``, to which several processes append.

Enters: rare events of a supervisor and of processes that do not train. Leaves: lines numbered without
gaps or doubles, whoever wrote them.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

from brickprof.journal import lines
from brickprof.journal.files import write_all
from brickprof.journal.layout import PROCESS


class ProcessLog:
    """Opened and locked for each event, so that it may be used from any process, also a forked one."""

    def __init__(self, run_folder: Path) -> None:
        self.path = Path(run_folder) / PROCESS
        self.stopped = ""
        self._counted = 0
        self._seq = 0

    def event(self, kind: str, step: int, fields: dict[str, Any]) -> int:
        """Appends one event; its seq, or -1 when it could not be written. Never raises."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                return self._append(descriptor, kind, step, fields)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.stopped = error.strerror or str(error)
            return -1

    def _append(self, descriptor: int, kind: str, step: int, fields: dict[str, Any]) -> int:
        torn = self._count_what_others_wrote(descriptor)
        line = lines.encode(self._seq, time.time_ns(), kind, step, fields)
        write_all(descriptor, b"\n" + line if torn else line)
        return self._seq

    def _count_what_others_wrote(self, descriptor: int) -> bool:
        """Brings the count of lines up to date; True when the last line has no end."""
        last = b"\n"
        while block := os.pread(descriptor, 2**20, self._counted):
            self._seq += block.count(b"\n")
            self._counted += len(block)
            last = block[-1:]
        return last != b"\n"
