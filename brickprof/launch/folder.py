"""Where a run is recorded: its own new folder, or one that all ranks of a torchrun job find by themselves.

Enters: the output folder and a name. Leaves: a ``Place``, an existing, writable folder with
``meta.json`` in it.

Under ``torchrun brickprof run ...`` every rank has a supervisor. They never talk: the folder's name is
derived from the launcher they all descend from (its pid and start) and from the job's id.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from brickprof.errors import OutputError
from brickprof.launch import processes
from brickprof.launch.target import Target
from brickprof.settings import RUN_VARIABLE, Settings, terms_in_words
from brickprof.text import clean

_FAREST_ANCESTOR = 32


@dataclass(frozen=True, slots=True)
class Place:
    path: Path
    run_id: str
    local_rank: int = 0
    shared: bool = False
    """Other supervisors record into the same folder."""

    @property
    def speaks(self) -> bool:
        """Of the supervisors of one machine, only the first says anything."""
        return self.local_rank == 0

    @property
    def shown(self) -> str:
        """The folder as the user would type it from where he is."""
        relative = os.path.relpath(self.path)
        return clean(self.path if relative.startswith("..") else relative)


def claim(target: Target, settings: Settings, *, name: str = "") -> Place:
    """Creates the run's folder and its ``meta.json``; ``OutputError`` when that cannot be done."""
    out = Path(settings.out).expanduser().absolute()
    job = launcher(os.environ)
    try:
        out.mkdir(parents=True, exist_ok=True)
        place = _joined(out, name or target.name, job) if job else _new(out, name or target.name)
    except OSError as error:
        raise OutputError(
            f"cannot record to {settings.out}: {_reason(error)}.", "Choose another folder with -o."
        ) from None
    _write_meta(place, target, settings)
    return place


def inside_another(environment: Mapping[str, str]) -> bool:
    """Whether we run below a supervisor that still records: then every Python process here is seen already.

    The variable alone may have been left behind, by a shell or a tmux server that a recorded script started.
    """
    run = environment.get(RUN_VARIABLE, "")
    if not run:
        return False
    from brickprof.journal import PROCESS, read_events

    with suppress(OSError):
        started = [event for event in read_events(Path(run) / PROCESS)[0] if event.kind == "start"]
        supervisors = {event.fields.get("supervisor") for event in started}
        return any(pid in supervisors for pid in processes.ancestors(os.getpid()))
    return False


def abandon(place: Place) -> None:
    """Takes back a folder in which nothing was recorded."""
    from brickprof.journal import META

    if not place.shared:
        with suppress(OSError):
            (place.path / META).unlink()
            place.path.rmdir()


@dataclass(frozen=True, slots=True)
class Job:
    """A job whose ranks were started by one launcher on this machine."""

    key: str
    started: float
    local_rank: int


def launcher(environment: Mapping[str, str]) -> Job | None:
    """The job this process is a rank of, when torchrun (or something like it) started it."""
    if not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} <= environment.keys():
        return None
    agent, found = _agent()
    if found is None:
        return None
    job = environment.get("TORCHELASTIC_RUN_ID", "")
    key = f"{job}:{platform.node()}:{agent}:{found.start_ticks}"
    started = processes.boot_time() + processes.seconds(found.start_ticks)
    local_rank = environment["LOCAL_RANK"]
    return Job(key, started, int(local_rank) if local_rank.isdigit() else 0)


def _agent() -> tuple[int, processes.Stat | None]:
    """The nearest ancestor that is no rank itself: a shell script per rank may stand in between."""
    pid = os.getppid()
    for _ in range(_FAREST_ANCESTOR):
        found = processes.stat(pid)
        if found is None or found.parent <= 1 or "LOCAL_RANK" not in processes.environment(pid):
            return pid, found
        pid = found.parent
    return pid, processes.stat(pid)


def _new(out: Path, name: str) -> Place:
    from brickprof.journal.folders import new_run_folder, run_id_of

    path = new_run_folder(out, name)
    return Place(path, run_id_of(path))


def _joined(out: Path, name: str, job: Job) -> Place:
    from brickprof.journal.folders import ALPHABET, ID_LENGTH, folder_name

    digest = hashlib.sha256(job.key.encode("utf-8", "surrogateescape")).digest()
    run_id = "".join(ALPHABET[byte % len(ALPHABET)] for byte in digest[:ID_LENGTH])
    path = out / folder_name(name, run_id, job.started)
    path.mkdir(exist_ok=True)
    return Place(path, run_id, job.local_rank, shared=True)


def _write_meta(place: Place, target: Target, settings: Settings) -> None:
    from brickprof.journal import META, write_meta
    from brickprof.records import RunMeta

    if place.shared and (place.path / META).exists():
        return
    meta = RunMeta(
        run_id=place.run_id,
        script=target.script,
        argv=target.command,
        started_ns=time.time_ns(),
        level=settings.level,
        version=_version(),
        host=platform.node(),
        extra={
            "cwd": os.getcwd(),
            "python": platform.python_version(),
            "overhead": settings.budget,
            **terms_in_words(settings),
        },
    )
    try:
        write_meta(place.path, meta)
    except OutputError:
        with suppress(OSError):
            place.path.rmdir()
        raise


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("brickprof")
    except PackageNotFoundError:
        return ""


def _reason(error: OSError) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "there is a file in its place"
    return error.strerror or str(error)
