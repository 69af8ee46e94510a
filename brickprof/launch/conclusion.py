"""After the script: the diagnosis, the summary and the next command to type.

Enters: a run's folder, whose script has ended. Leaves: ``diagnosis.json``, a summary on stderr and, of a run that is
broken, ``report.html``.
Whatever goes wrong here is ours, is said in one line, and never changes the script's exit code.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brickprof.launch import processes
from brickprof.launch.asked import answers
from brickprof.launch.exits import Exit
from brickprof.launch.folder import Place
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis import Diagnosis
    from brickprof.run import Run

FAIL_ON = ("never", "error", "warning")
PAGES = ("failed", "always", "never")
"""When the web page is written."""
_PATIENCE = {True: 10.0, False: 2.0}
"""Seconds the rank that speaks waits for the others to end, by whether its own script ended well: ranks that ended
well end together; one that failed must leave soon, so that its launcher stops the others."""
_LOOK_EVERY = 0.05
_SEVERITIES = {"never": (), "error": ("error",), "warning": ("error", "warning")}


def conclude(
    place: Place, ended: Exit, *, fail_on: str = "never", page: str = "failed", sync_check: bool = False,
    sanitizer: str = "",
) -> int:  # fmt: skip
    """Judges the run, tells the user, and gives brickprof's exit code; ``sync_check`` and ``sanitizer`` (a tool) are
    what somebody asked for."""
    if not place.speaks and processes.in_run(place.path):
        return ended.code  # a rank that is still running will judge for all
    try:
        if place.shared:
            _others_end(place.path, _PATIENCE[ended.code == 0])
        diagnosis, run, problem = _diagnosed(place.path)
    except KeyboardInterrupt:
        _say(place, f"interrupted while judging the run; it is recorded in {place.shown}.")
        return ended.code
    except Exception as error:
        _say(place, f"the run is recorded in {place.shown}, but could not be judged: {_in_words(error)}")
        return ended.code
    if problem:
        _say(place, problem)
    if place.speaks:
        try:
            asked = answers(diagnosis, run, sync_check=sync_check, sanitizer=sanitizer)
            _show(diagnosis, place, ended, asked)
        except (KeyboardInterrupt, SystemExit):
            pass  # rich exits by itself when the reader of its output has left
        except Exception as error:
            _say(place, f"the diagnosis is in {place.shown}, but could not be shown: {_in_words(error)}")
        if page == "always" or (page == "failed" and diagnosis.verdict == "FAIL"):
            _page(diagnosis, run, place)
    return exit_code(ended.code, diagnosis.to_dict(), fail_on)


def exit_code(script: int, diagnosis: dict[str, Any], fail_on: str) -> int:
    """The script's own code; 1 when it was 0 and a finding is as severe as the user will not have."""
    severe = _SEVERITIES[fail_on]
    if script == 0 and any(finding.get("severity") in severe for finding in diagnosis.get("findings", [])):
        return 1
    return script


def _others_end(run: Path, patience: float) -> None:
    """Returns when no process of this machine records into ``run`` any more, or patience is at its end."""
    until = time.monotonic() + patience
    while time.monotonic() < until and processes.in_run(run):
        time.sleep(_LOOK_EVERY)


def _diagnosed(folder: Path) -> tuple[Diagnosis, Run, str]:
    """The diagnosis, which is also written; its run; and why writing did not work, if it did not."""
    from brickprof.diagnosis import diagnose
    from brickprof.diagnosis.saving import write
    from brickprof.run import Run

    # Ranks of one job end one after the other: the last to write has seen the most.
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = Run.open(folder)
        diagnosis = diagnose(run)
        try:
            write(diagnosis, folder, run)
        except OSError as error:
            return diagnosis, run, f"diagnosis.json could not be written: {error.strerror}."
        return diagnosis, run, ""
    finally:
        os.close(lock)


def _show(diagnosis: Diagnosis, place: Place, ended: Exit, asked: list[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    from brickprof.reports.terminal import render

    console = Console(stderr=True)
    render(diagnosis, console)
    notes = [f"  {'Note':11}{clean(each)}" for each in asked]
    for line in [*notes, *after(diagnosis.to_dict(), place, ended)]:
        console.print(Text(line, "dim"), soft_wrap=True)


def _page(diagnosis: Diagnosis, run: Run, place: Place) -> None:
    """Writes the page to send to somebody, and says where it is."""
    from brickprof.reports.html import text

    file = place.path / "report.html"
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(text(diagnosis, run), "utf-8")
        beside.replace(file)
        _put(f"  {'Report':11}{place.shown}/{file.name}")
    except KeyboardInterrupt:
        _say(place, f"interrupted while writing the page; brickprof report {place.run_id} writes it.")
    except Exception as error:
        _say(place, f"the page was not written: {_in_words(error)}")
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def after(diagnosis: dict[str, Any], place: Place, ended: Exit) -> list[str]:
    """What the report leaves unsaid: how the script ended, and the next command when there is no finding."""
    if diagnosis["findings"]:
        return []
    lines = [f"  {'Ended':11}{ended.text}"] if ended.code and diagnosis["verdict"] != "FAIL" else []
    if diagnosis["verdict"] == "VACUOUS":
        lines.append(f"  {'Then':11}brickprof doctor    what can be captured here, and what not")
    elif on_terminal():
        lines.append(f"  {'Then':11}brickprof show {place.run_id}    what was recorded")
    return lines


def on_terminal() -> bool:
    """Whether somebody watches stderr."""
    try:
        return os.isatty(2)
    except OSError:
        return False


def _say(place: Place, text: str) -> None:
    if place.speaks:
        _put(f"brickprof: {text}")


def _put(line: str) -> None:
    """On stderr, if it is there and somebody reads it: it may be closed, full, or a pipe whose reader has left."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


def _in_words(error: Exception) -> str:
    return clean(f"{type(error).__name__}: {error}", limit=300)
