"""A log that still grows: judged again and again, and an alarm for each new finding.

Enters: a path whose file may not exist yet, may be rotated, or cut off and begun anew; or a pipe. Leaves: an alarm for
each finding as it appears, and the last verdict. A reader of lines reads on where it stopped; other formats are read
anew, the more rarely the longer that takes.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any, TextIO

from brickprof import logs
from brickprof.analysis.groups import called
from brickprof.analysis.judging import Judged, Options, judge
from brickprof.contracts.verdicts import Severity
from brickprof.diagnosis.model import Finding
from brickprof.diagnosis.words import words
from brickprof.errors import UnreadableInput, UsageError
from brickprof.logs.reading.gather import Gathering
from brickprof.logs.reading.model import Reader
from brickprof.logs.reading.source import CHUNK, HEAD, LONGEST_LINE, Source
from brickprof.text import clean

LOOK_EVERY = 0.2
JUDGE_EVERY = 1.0
_SHARE = 0.1
"""Of one core, at most, for judging and reading anew."""
_SLOWEST = 30.0
_PATIENCE_OF_COMMANDS = 10.0

Alarm = Callable[[Finding, Judged], None]


class Tail:
    """New bytes of a file that grows, whatever happens to the file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.begun_anew = 0
        """How often the file was another one, or shorter than before."""
        self._file: IO[bytes] | None = None

    def read(self, most: int = CHUNK) -> bytes:
        """What is new, at most so much; nothing where nothing is."""
        if self._file is None:
            self._open()
        if self._file is None:
            return b""
        data = self._new(most)
        if not data and self._is_another():
            # What was written between the last look and the rotation is in the old file still.
            self.begun_anew += 1
            self._file.close()
            self._open()
            data = self._file.read(most) if self._file is not None else b""
        return data

    def _new(self, most: int) -> bytes:
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self.begun_anew += 1
            self._file.seek(0)
        return self._file.read(most)

    def _open(self) -> None:
        self._file = None
        try:
            if os.path.isdir(self.path):
                raise UnreadableInput(f"{clean(self.path)} is a folder.", "--follow watches one file.")
            self._file = open(self.path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise UnreadableInput(f"{clean(self.path)} cannot be read: {clean(error)}.") from None

    def _is_another(self) -> bool:
        assert self._file is not None
        try:
            there = os.stat(self.path)
        except OSError:
            return False  # moved away, and nothing in its place yet
        ours = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    @property
    def ended(self) -> bool:
        return False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class PipeTail:
    """What is piped in, as it comes."""

    begun_anew = 0

    def __init__(self, stream: Any) -> None:
        self._handle = stream.fileno()
        self.ended = False

    def read(self, most: int = CHUNK) -> bytes:
        if self.ended or not select.select([self._handle], [], [], 0)[0]:
            return b""
        data = os.read(self._handle, min(most, 1 << 20))
        self.ended = not data
        return data

    def close(self) -> None:
        pass


class _Growing(Source):
    """A source whose chunks come as they are written; while there are none, ``pause`` is called."""

    def __init__(self, path: str, read: Callable[[], bytes], pause: Callable[[], bool], start: bytes) -> None:
        super().__init__(path)
        self._read, self._pause, self._start = read, pause, start
        self._head = start[:HEAD]

    def chunks(self, size: int = CHUNK) -> Iterator[bytes]:
        rest, over = self._start, False
        while True:
            cut = rest.rfind(b"\n")
            if cut >= 0:
                chunk, rest = rest[: cut + 1], rest[cut + 1 :]
                if over:
                    chunk, over = chunk[chunk.find(b"\n") + 1 :], False
                self.line_ends += chunk.count(b"\n")
                if chunk:
                    yield chunk
            elif len(rest) > LONGEST_LINE:
                yield rest[:LONGEST_LINE] + b"\n"
                rest, over = b"", True
            more = self._read()
            if not more and not self._pause():
                break
            rest = b"" if over and b"\n" not in more else rest + more
        if rest and not over:
            yield rest


class Following:
    def __init__(
        self,
        path: str,
        options: Options,
        *,
        until_idle: float | None = None,
        halt_on: str = "never",
        alarm: Alarm | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path, self._options = path, options
        self._until_idle, self._halt_on, self._alarm = until_idle, halt_on, alarm
        self._clock, self._sleep = clock, sleep
        self._tail: Tail | PipeTail = PipeTail(sys.stdin.buffer) if path == "-" else Tail(path)
        self._seen: set[tuple[str, int]] = set()
        self._grew = clock()
        self._next = clock()
        self._dirty = False
        self._halted = False
        self._judged: Judged | None = None
        self._gathering: Gathering | None = None
        self._anew: Reader | None = None

    def watch(self) -> Judged:
        """Until the file stays still for too long, a finding says stop, or somebody interrupts."""
        start = b""
        try:
            reader, start = self._recognised()
            self._read_on(reader, start)
        except KeyboardInterrupt:
            pass
        finally:
            self._tail.close()
        if not self._halted:
            self._judge(final=True)
        if self._judged is None:
            raise UnreadableInput(
                f"nothing was written to {clean(self._path)} that I can read.", "See: brickprof analyze --list-formats"
            )
        return self._judged

    # -- waiting

    def _new(self) -> bytes:
        data = self._tail.read()
        if data:
            self._grew = self._clock()
            self._dirty = True
        return data

    def _rest(self) -> bool:
        """A pause; False when it is time to stop."""
        now = self._clock()
        if self._halted or self._tail.ended:
            return False
        if self._until_idle is not None and now - self._grew >= self._until_idle:
            return False
        self._sleep(LOOK_EVERY)
        return True

    def _recognised(self) -> tuple[Reader, bytes]:
        """The reader, as soon as enough is there to tell; and what was read till then."""
        chosen = logs.choose(self._options.format, self._options.pattern)
        start = b""
        while True:
            start += self._new()
            if b"\n" in start:
                if chosen is not None:
                    return chosen, start
                found, sure = self._sniffed(start)
                settled = self._clock() - self._grew >= 2.0 or self._tail.ended
                if found is not None and (sure or len(start) >= HEAD or settled):
                    return found, start
                if len(start) >= 4 * HEAD:
                    logs.sniff(_Growing(self._path, lambda: b"", lambda: False, start))
            if not self._rest():
                found, _ = self._sniffed(start) if chosen is None else (chosen, True)
                if found is None or not start:
                    raise UnreadableInput(
                        f"nothing was written to {clean(self._path)} that I can read.", "It may need more time."
                    )
                return found, start

    def _sniffed(self, start: bytes) -> tuple[Reader | None, bool]:
        """Who would read it, and whether twenty lines are there to tell by."""
        try:
            found = logs.sniff(_Growing(self._path, lambda: b"", lambda: False, start))
        except UnreadableInput:
            return None, False
        return found, start.count(b"\n") >= 20

    # -- reading

    def _read_on(self, reader: Reader, start: bytes) -> None:
        if not getattr(reader, "by_lines", False) and self._path != "-":
            self._anew = reader
            self._dirty = True
            while self._read_anew() and self._rest():
                self._new()
            return
        source = _Growing(self._path, self._new, self._while_waiting, start)
        self._dirty = True
        self._gathering = Gathering(self._path, reader.name, dict(getattr(reader, "roles", {})))
        for item in reader.read(source):
            self._gathering.take([item])
            self._dirty = True  # what a chunk says comes in several items
            self._judge_if_time()
            if self._halted:
                return

    def _while_waiting(self) -> bool:
        self._judge_if_time()
        return self._rest()

    def _read_anew(self) -> bool:
        self._judge_if_time()
        return not self._halted

    # -- judging

    def _judge_if_time(self) -> None:
        if self._dirty and self._clock() >= self._next:
            self._judge()

    def _judge(self, final: bool = False) -> None:
        if not self._dirty and self._judged is not None and not (final and self._options.out):
            return
        began = self._clock()
        log = self._log()
        if log is None:
            return
        options = self._options if final else replace(self._options, out="")
        judged = judge([log], called([(self._path,)])[0], options)
        self._judged, self._dirty = judged, False
        self._tell(judged)
        if self._halted and self._options.out and not final:
            self._judged = judge([log], judged.name, self._options)
        self._next = self._clock() + min(max(JUDGE_EVERY, (self._clock() - began) / _SHARE), _SLOWEST)

    def _log(self) -> logs.Log | None:
        if self._gathering is not None:
            return self._gathering.log()
        if self._anew is None:
            return None
        try:
            return logs.read(self._path, self._anew)
        except UnreadableInput:
            return None  # being replaced just now

    def _tell(self, judged: Judged) -> None:
        for finding in judged.diagnosis.findings:
            known = finding.contract or finding.root_cause, finding.first_step
            if finding.severity is Severity.INFO or known in self._seen:
                continue
            self._seen.add(known)
            if self._alarm is not None:
                self._alarm(finding, judged)
            if self._halt_on == "warning" or (self._halt_on == "error" and finding.severity is Severity.ERROR):
                self._halted = True


class Alarms:
    """A line for each finding, and a command where one was given. What the log says reaches it in the environment
    only, never as words of a command line."""

    def __init__(self, command: str = "", stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._command = self._checked(command)
        self._started: list[subprocess.Popen[bytes]] = []

    def _checked(self, command: str) -> list[str]:
        try:
            parts = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"--exec cannot be read: {error}.") from None
        if command and not (parts and shutil.which(parts[0])):
            raise UsageError(f"--exec: there is no program {clean(parts[0] if parts else command)}.")
        return parts

    def __call__(self, finding: Finding, judged: Judged) -> None:
        mark = "✗" if finding.severity is Severity.ERROR else "!"
        line = (
            f"{time.strftime('%H:%M:%S')}  {mark} step {finding.first_step:,}: {clean(finding.symptom)}"
            f" · {clean(words(finding.root_cause))}  {clean(finding.contract)}"
        )
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=self._stream, flush=True)
        if self._command:
            self._run(finding, judged)

    def _run(self, finding: Finding, judged: Judged) -> None:
        told = {
            "VERDICT": judged.diagnosis.verdict.value, "CAUSE": finding.root_cause, "STEP": str(finding.first_step),
            "SYMPTOM": finding.symptom, "CONTRACT": finding.contract, "SEVERITY": finding.severity.value,
            "LOG": judged.files[0] if judged.files else "", "ACTION": finding.action,
        }  # fmt: skip
        environment = os.environ | {f"BRICKPROF_{name}": clean(value) for name, value in told.items()}
        self._started = [process for process in self._started if process.poll() is None]
        try:
            self._started.append(subprocess.Popen(self._command, env=environment, stdin=subprocess.DEVNULL))
        except OSError as error:
            print(f"brickprof: --exec failed: {clean(error)}", file=sys.stderr)

    def wait(self) -> None:
        """Commands that were started may come to their end."""
        until = time.monotonic() + _PATIENCE_OF_COMMANDS
        for process in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))
