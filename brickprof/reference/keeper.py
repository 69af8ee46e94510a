"""Specimens run under brickprof, several at a time, each in a process and a folder of its own.

Enters: specimens, a folder, a time limit. Leaves: an ``Outcome`` each, in their order. A run that takes too long is
asked to stop and then made to; nothing that was started outlives the keeper.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

import brickprof
from brickprof.reference.score import Outcome
from brickprof.reference.zoo import Specimen

PATIENCE = 10.0
"""Seconds between the request to stop and the kill."""
_SAID_BYTES = 4000
_ROOT = str(Path(brickprof.__file__).resolve().parent.parent)
_ON_DEVICE, _COMPILED = str(Path(__file__).parent / "on_device"), str(Path(__file__).parent / "compiled")

Told = Callable[[Specimen, Outcome], None]


def command(specimen: Specimen, out: Path, level: str = "") -> list[str]:
    """The command line that runs ``specimen`` and leaves its run's folder in ``out``; at ``level``, unless the specimen
    itself asks for another."""
    watched = [sys.executable, "-m", "brickprof", "run", "-o", str(out), "--no-live"]
    watched += [*(["--level", level] if level and "--level" not in specimen.run else []), *specimen.run]
    if specimen.family == "reference" and not specimen.healthy:
        training = ["-m", "brickprof.reference", "--config", "tiny", "--fault", specimen.id]
    else:
        training = [str(specimen.path.resolve())]
    return [*watched, *training, *specimen.args]


def rejudge(specimen: Specimen, folder: Path) -> Outcome:
    """The run of ``specimen`` that was kept in ``folder``, diagnosed again by today's rules; nothing is run."""
    place = folder / specimen.id
    kept = _run_folder(place / "runs")
    if kept is None:
        return Outcome(skipped="no run of it is kept")
    said = _tail(place / "output.txt")
    start = time.monotonic()
    try:
        diagnosis = brickprof.diagnose(kept).to_dict()
    except brickprof.BrickprofError as error:
        return Outcome(None, time.monotonic() - start, kept, said=str(error))
    return Outcome(diagnosis, time.monotonic() - start, kept, said=said)


class Keeper:
    def __init__(
        self,
        folder: Path,
        *,
        timeout: float,
        jobs: int,
        keep_runs: bool = True,
        on_gpu: bool = False,
        compiled: bool = False,
        level: str = "",
    ) -> None:
        """``on_gpu``: scripts that name no device have theirs moved to the GPU; ``compiled``: their models are
        compiled."""
        self.folder = folder
        self.level = level
        self.on_gpu = on_gpu
        self.compiled = compiled
        self.timeout = timeout
        self.jobs = jobs
        self.keep_runs = keep_runs
        self._living: set[subprocess.Popen[bytes]] = set()
        self._closing = threading.Event()

    def run_all(self, specimens: Sequence[Specimen], lacks: Mapping[str, str], told: Told) -> list[Outcome]:
        """``lacks`` says why what needs a thing is not run here; ``told`` hears of each run as it ends."""
        found: dict[str, Outcome] = {}
        together = [one for one in specimens if not one.alone]
        for jobs, group in ((self.jobs, together), (1, [one for one in specimens if one.alone])):
            with ThreadPoolExecutor(jobs) as pool:
                waiting = {pool.submit(self.run, one, lacks.get(one.needs, "")): one for one in group}
                try:
                    for done in as_completed(waiting):
                        specimen = waiting[done]
                        found[specimen.id] = done.result()
                        told(specimen, found[specimen.id])
                except BaseException:
                    self.close()
                    pool.shutdown(cancel_futures=True)
                    raise
        return [found[specimen.id] for specimen in specimens]

    def run(self, specimen: Specimen, lacking: str = "") -> Outcome:
        if lacking or self._closing.is_set():
            return Outcome(skipped=lacking or "interrupted")
        place = self.folder / specimen.id
        work, runs = place / "work", place / "runs"
        shutil.rmtree(place, ignore_errors=True)
        work.mkdir(parents=True)
        for name, text in specimen.files:
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text(text, "utf-8")
        outcome = self._watched(specimen, place, work, runs)
        if not self.keep_runs:
            shutil.rmtree(place, ignore_errors=True)
        return outcome

    def close(self) -> None:
        """Ends what is still running."""
        self._closing.set()
        for process in list(self._living):
            _end(process)

    def _watched(self, specimen: Specimen, place: Path, work: Path, runs: Path) -> Outcome:
        start, timed_out = time.monotonic(), False
        with open(place / "output.txt", "wb") as output:
            process = subprocess.Popen(
                command(specimen, runs.resolve(), self.level), cwd=work,
                env=_environment(self.on_gpu and _names_no_device(specimen), self.compiled), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self._living.add(process)
            try:
                process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                _end(process)
                self._living.discard(process)
        seconds = time.monotonic() - start
        folder = _run_folder(runs)
        kept = folder if self.keep_runs else None
        said = _tail(place / "output.txt")
        return Outcome(_diagnosis(folder), seconds, kept, timed_out, process.returncode, said=said)


def _names_no_device(specimen: Specimen) -> bool:
    """What needs a GPU says itself what lies there, and the reference training takes one where it is."""
    return specimen.needs == "cpu" and specimen.family != "reference"


def _environment(on_gpu: bool, compiled: bool) -> dict[str, str]:
    """Ours, with this very brickprof to import, and one thread each where nothing else is said."""
    first = [*([_COMPILED] if compiled else []), *([_ON_DEVICE] if on_gpu else [])]
    paths = [*first, _ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
    # Whatever the script itself started is in the same group.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _run_folder(runs: Path) -> Path | None:
    folders = sorted(runs.glob("*/"), key=lambda path: path.stat().st_mtime) if runs.is_dir() else []
    return folders[-1] if folders else None


def _diagnosis(folder: Path | None) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / "diagnosis.json").read_text("utf-8")) if folder else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _tail(file: Path) -> str:
    with open(file, "rb") as output:
        output.seek(max(0, file.stat().st_size - _SAID_BYTES))
        return output.read().decode("utf-8", "replace")
