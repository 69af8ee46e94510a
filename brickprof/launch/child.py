"""The script's process: started as Python would start it, with the variables that make it record itself.

Enters: a ``Target`` and a ``Place``. Leaves: a running process in our own process group (so that Ctrl-C,
Ctrl-Z and fg reach it), with the signal mask, the streams and the arguments it would have had without
us.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from brickprof.capture import boot
from brickprof.errors import UsageError
from brickprof.launch import processes
from brickprof.launch.folder import Place
from brickprof.launch.relay import Relay
from brickprof.launch.target import Target
from brickprof.settings import Settings
from brickprof.text import clean

SITE = Path(boot.__file__).resolve().parent / "site"


class Child:
    """A started script."""

    def __init__(self, pid: int, lifeline_end: int | None, wrapped: tuple[str, ...] = ()) -> None:
        self.pid = pid
        self._wrapped = wrapped
        self._script: tuple[int, int] | None = None
        self.status: int | None = None
        self.peak_rss = 0
        self.cpu_seconds = 0.0
        self._lifeline_end = lifeline_end

    def reap(self) -> bool:
        """Whether it has ended; collects it when it has. A tool may go before the script that it has started."""
        if self.status is None:
            self._find_script()
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.status = status
                self.peak_rss = usage.ru_maxrss * 1024
                self.cpu_seconds = usage.ru_utime + usage.ru_stime
        return self.status is not None and not self._script_lives()

    def wait(self) -> None:
        """Waits as long as it takes."""
        if self.status is None:
            _, self.status = os.waitpid(self.pid, 0)

    def send(self, number: int) -> None:
        """To the script itself: a tool before it may die of the signal, and take what it knows with it."""
        self._find_script()
        alive = self._script[0] if self._script is not None and self._script_lives() else 0
        if alive or self.status is None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(alive or self.pid, number)

    def kill(self) -> None:
        """SIGKILL to everything that was started."""
        if self._script is not None and self._script_lives():
            processes.kill_tree(self._script[0])
        if self.status is None:
            processes.kill_tree(self.pid)

    def _find_script(self) -> None:
        """The script below a tool: the first process with its command line, or with that behind an interpreter's name.

        The tool's own helpers may have it too, behind many words more; a worker that was forked comes after.
        """
        if not self._wrapped or self._script is not None or self.status is not None:
            return
        length = len(self._wrapped)
        lines = {pid: processes.words(pid) for pid in processes.descendants(self.pid)}
        mine = [pid for pid, line in lines.items() if line[-length:] == self._wrapped and len(line) <= length + 2]
        pid = min(mine, key=lambda each: len(lines[each]), default=0)
        if found := processes.stat(pid) if pid else None:
            self._script = pid, found.start_ticks

    def _script_lives(self) -> bool:
        if self._script is None:
            return False
        found = processes.stat(self._script[0])
        return found is not None and found.state not in "ZX" and found.start_ticks == self._script[1]

    def in_our_group(self) -> bool:
        try:
            return os.getpgid(self.pid) == os.getpgrp()
        except OSError:
            return True


def start(target: Target, place: Place, settings: Settings, mask: Iterable[int], relay: Relay | None) -> Child:
    environment = variables(os.environ, place, settings)
    actions = [(os.POSIX_SPAWN_DUP2, relay.slave, stream) for stream in relay.streams] if relay else []
    lent: list[int] = []
    lifeline_end = None
    if relay is not None and target.python and hasattr(fcntl, "F_SETSIG"):
        lifeline_end, lent = _lifeline(relay)
        environment[boot.LIFELINE_VARIABLE] = ",".join(map(str, [*lent, *relay.streams]))
    try:
        pid = os.posix_spawn(
            target.command[0], target.command, environment, file_actions=actions,
            setsigmask=mask, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{clean(target.script)} cannot be started: {error.strerror}.") from None
    finally:
        for descriptor in lent:
            os.close(descriptor)
    return Child(pid, lifeline_end, target.wrapped)


def variables(environment: Mapping[str, str], place: Place, settings: Settings) -> dict[str, str]:
    """The environment of the script: ours, and what makes every Python process in it record itself."""
    given = dict(environment)
    paths = [path for path in given.get("PYTHONPATH", "").split(os.pathsep) if path != str(SITE)]
    # An empty entry would mean the working folder: only one that was there before may stay.
    kept = paths if given.get("PYTHONPATH") else []
    given["PYTHONPATH"] = os.pathsep.join([str(SITE), *kept])
    given[boot.RUN_VARIABLE] = str(place.path)
    given[boot.SETTINGS_VARIABLE] = settings.to_json()
    given[boot.MAIN_VARIABLE] = "1"
    return given


def _lifeline(relay: Relay) -> tuple[int, list[int]]:
    """Our end of a pipe that breaks when we die, and what the script gets to go on without us."""
    theirs, ours = os.pipe()
    lent = [_lent(theirs), _lent(relay.master), _lent(relay.terminal)]
    os.close(theirs)
    return ours, lent


def _lent(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD, boot.HIGH_DESCRIPTOR)
    except OSError:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD, 3)
