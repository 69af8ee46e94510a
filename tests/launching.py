"""Real runs for tests: starts ``brickprof run`` and reads what it recorded."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from brickprof.journal import read_events

COMMAND = [sys.executable, "-m", "brickprof"]


def environment(**changes):
    ours = ("BRICKPROF", "TORCHELASTIC", "OTEL", "RANK", "LOCAL_RANK", "WORLD_SIZE")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | changes


def run(arguments, cwd, *, timeout=60, **changes):
    """``brickprof run ARGUMENTS`` to its end."""
    return finished([*COMMAND, "run", *arguments], cwd, timeout=timeout, **changes)


def finished(command, cwd, *, text=True, timeout=60, **changes):
    """Any command to its end."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=text,
        timeout=timeout,
        check=False,
    )


def start(arguments, cwd, **changes):
    return subprocess.Popen(
        [*COMMAND, "run", *arguments], cwd=cwd, env=environment(**changes), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def terminal(arguments, cwd, *, columns=100, **changes):
    """``brickprof run`` on a terminal of its own."""
    surroundings = environment(TERM="xterm", **changes)
    for name in ("COLUMNS", "LINES"):  # the test runner's own, which would win over the terminal's size
        surroundings.pop(name, None)
    import pexpect  # only here: what runs without a terminal needs no terminal

    return pexpect.spawn(
        COMMAND[0], [*COMMAND[1:], "run", *map(str, arguments)], cwd=str(cwd),
        env=surroundings, dimensions=(24, columns), timeout=30, echo=False,
    )  # fmt: skip


def script(folder, text, name="t.py"):
    path = Path(folder) / name
    path.write_text(text)
    return path


def recorded(folder, out="brickprof-runs"):
    """The one run in ``folder``."""
    (found,) = (Path(folder) / out).iterdir()
    return found


def events(folder, kind=None, out="brickprof-runs"):
    found, damage = read_events(recorded(folder, out) / "process.jsonl")
    assert not damage.bytes_lost
    return [event for event in found if kind in (None, event.kind)]


def exited(folder, out="brickprof-runs"):
    (event,) = events(folder, "exited", out)
    return event.fields


def until(condition, seconds=10.0):
    """Waits for ``condition`` to give something."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s for {condition}")


def alive(pid):
    try:
        return state(pid) not in "ZX"
    except OSError:
        return False


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def script_pid(folder):
    started = until(lambda: [e for e in _quiet_events(folder) if e.kind == "start"])
    return started[0].fields["pid"]


def _quiet_events(folder):
    try:
        return events(folder)
    except (ValueError, OSError, AssertionError):
        return []


def end(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
