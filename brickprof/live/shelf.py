"""The runs that a server knows, and no others.

Enters: the runs and folders of runs that were named on the command line. Leaves: an entry for each run, by an id that
the server itself has given; what each is like at a glance; and, for those that somebody looks at, the run followed.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brickprof import pulse
from brickprof.diagnosis.model import Diagnosis
from brickprof.diagnosis.saving import NAME as DIAGNOSIS
from brickprof.errors import BrickprofError
from brickprof.journal import EVENTS, PROCESS, PROCESS_RANK, rank_folders, read_meta
from brickprof.journal.lines import parse_events
from brickprof.live.condition import Signs
from brickprof.live.following import listable, may_read
from brickprof.live.reading import Events, sound
from brickprof.live.watching import Watched
from brickprof.reports.live.facts import facts, number
from brickprof.run.parts import unpacked
from brickprof.run.places import is_run, runs_in
from brickprof.text import clean

_RESCAN = 2.0
_SETTLED_RESCAN = 20.0
"""Seconds between looks at a run that is over."""
_MOST_RUNS = 300
_MOST_FOLLOWED = 12
_STILL_WANTED = 20.0
"""Seconds after which a run that nobody asked for makes room for another: pages ask every fifteen at least."""
_IDLE = 60.0
_LOOK = 0.2
_TAIL = 65_536
_WANTED = frozenset((b"start", b"exited"))


@dataclass(slots=True)
class Entry:
    id: str
    folder: Path
    told: dict[str, Any] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    """What never changes."""
    looked: float = float("-inf")
    signs: Signs = field(default_factory=Signs)
    launch: Events | None = None
    judged: tuple[int, Diagnosis | None] = (0, None)


@dataclass(slots=True)
class _Followed:
    watched: Watched
    lock: threading.Lock = field(default_factory=threading.Lock)
    looked: float = float("-inf")
    asked: float = 0.0
    told: dict[str, Any] = field(default_factory=dict)


class Crowded(Exception):
    """More runs are looked at than one server follows."""


class Shelf:
    """Safe to ask from several threads."""

    def __init__(self, given: list[Path]) -> None:
        self._given = given
        self._found: dict[Path, list[Path]] = {}
        self._entries: dict[str, Entry] = {}
        self._followed: OrderedDict[str, _Followed] = OrderedDict()
        self._lock = threading.Lock()
        self._scanned = float("-inf")
        self.left_out = 0
        self._scan()

    # -- what there is

    def folder(self, identity: str) -> Path | None:
        with self._lock:
            self._scan()
            entry = self._entries.get(identity)
            return entry.folder if entry is not None else None

    def runs(self) -> list[dict[str, Any]]:
        """Every run at a glance, the newest first."""
        with self._lock:
            self._scan()
            return [self._glance(entry) for entry in self._entries.values()]

    def __len__(self) -> int:
        return len(self._entries)

    def _scan(self) -> None:
        now = time.monotonic()
        if now - self._scanned < _RESCAN:
            return
        self._scanned = now
        folders: dict[Path, None] = {}
        for path in self._given:
            with suppress(OSError):  # something went away while it was listed: what was there stays until the next look
                self._found[path] = [path] if is_run(path) else runs_in(path)
            folders.update(dict.fromkeys(self._found.get(path, ())))
        self.left_out = max(len(folders) - _MOST_RUNS, 0)
        kept = list(folders)[:_MOST_RUNS]
        self._entries = {
            identity: self._entries.get(identity) or Entry(identity, folder)
            for folder, identity in ((folder, identity_of(folder)) for folder in kept)
        }

    def _glance(self, entry: Entry) -> dict[str, Any]:
        now = time.monotonic()
        wait = _SETTLED_RESCAN if entry.told.get("over") and entry.told.get("verdict") else _RESCAN / 2
        if now - entry.looked >= wait:
            entry.looked = now
            entry.told = _glanced(entry)
        return entry.told

    # -- one run, followed

    def look(self, identity: str) -> dict[str, Any] | None:
        """The run as it is now; None where there is none of that id. ``BrickprofError`` where it may not be read."""
        folder = self.folder(identity)
        if folder is None:
            return None
        followed = self._of(identity, folder)
        with followed.lock:
            now = time.monotonic()
            followed.asked = now
            if now - followed.looked >= _LOOK:
                followed.looked = now
                followed.told = {**facts(followed.watched.tick(now)), "key": identity,
                                 "settled": followed.watched.settled}  # fmt: skip
            return followed.told

    def _of(self, identity: str, folder: Path) -> _Followed:
        now = time.monotonic()
        left: list[_Followed] = []
        with self._lock:
            if identity not in self._followed:
                new = _Followed(Watched(folder), asked=now)
                left = self._room(now)
                self._followed[identity] = new
            self._followed.move_to_end(identity)
            found = self._followed[identity]
        _close(left)
        return found

    def _room(self, now: float) -> list[_Followed]:
        """Takes out what has to go: a run that is settled, which costs little to open again, else an old one.

        Two pages must not push each other's run out: each would be read and judged from its start, again and again.
        """
        if len(self._followed) < _MOST_FOLLOWED:
            return []
        for identity, each in self._followed.items():
            if each.watched.settled or now - each.asked >= _STILL_WANTED:
                return [self._followed.pop(identity)]
        raise Crowded(f"{_MOST_FOLLOWED} runs are looked at already: close a page of another one.")

    def tidy(self) -> None:
        """Lets go of runs that nobody has asked for lately."""
        now = time.monotonic()
        with self._lock:
            idle = [identity for identity, each in self._followed.items() if now - each.asked > _IDLE]
            left = [self._followed.pop(identity) for identity in idle]
        _close(left)

    def close(self) -> None:
        with self._lock:
            left, self._followed = list(self._followed.values()), OrderedDict()
        _close(left)


def identity_of(folder: Path) -> str:
    """A name for a run in addresses: from where it lies, and telling nothing of it."""
    return hashlib.sha256(str(folder.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _close(left: list[_Followed]) -> None:
    for each in left:
        with each.lock:
            each.watched.close()


def _glanced(entry: Entry) -> dict[str, Any]:
    """The run at a glance. One that cannot be told of must not take the others off the list."""
    told: dict[str, Any] = {
        "key": entry.id,
        "name": clean(entry.folder.name, limit=200),
        "over": False,
        "verdict": None,
    }
    try:
        listable(entry.folder, entry.folder)
        return told | _at_a_glance(entry)
    except BrickprofError as error:
        said = clean(error, limit=200)
    except Exception as error:  # of files that somebody wrote by hand, or took away meanwhile
        said = clean(f"{type(error).__name__}: {error}", limit=200)
    return {**told, "state": "unreadable", "said": said}


def _at_a_glance(entry: Entry) -> dict[str, Any]:
    folder = entry.folder
    if entry.launch is None:
        may_read(folder)
        meta = read_meta(folder)[0]
        entry.signs.host = str(meta.host)
        entry.known = {"script": clean(meta.script, limit=120), "started": int(meta.started_ns) / 1e9}
        entry.launch = Events(folder / PROCESS, PROCESS_RANK, _WANTED)
    told = dict(entry.known)
    for event in entry.launch.poll():
        entry.signs.take(event)
    ranks = rank_folders(folder)
    entry.signs.beats = {rank: beat for rank, home in ranks.items() if (beat := pulse.read(home)) is not None}
    condition = entry.signs.condition()
    first = entry.signs.beats.get(min(entry.signs.beats, default=0))
    step, loss = (first.step, first.loss) if first is not None else _last_loss(folder, ranks)
    diagnosis = _diagnosis(entry)
    told |= {"state": condition.word, "said": condition.text, "over": condition.over, "ranks": len(ranks)}
    told |= {"step": step, "loss": number(loss) if loss is not None and (step or first is None) else None}
    if diagnosis is not None and condition.over:
        found = diagnosis.findings[0] if diagnosis.findings else None
        told |= {"verdict": diagnosis.verdict.value, "finding": clean(found.symptom, limit=160) if found else ""}
    return told


def _diagnosis(entry: Entry) -> Diagnosis | None:
    """The diagnosis beside the run, read again only when it has changed."""
    try:
        written = (entry.folder / DIAGNOSIS).stat().st_mtime_ns
        if written != entry.judged[0]:
            entry.judged = (written, Diagnosis.read(entry.folder / DIAGNOSIS))
    except (OSError, BrickprofError):
        return None
    return entry.judged[1]


def _last_loss(folder: Path, ranks: dict[int, Path]) -> tuple[int, float | None]:
    """The last loss in the end of the events, of a run that has no pulse."""
    try:
        path = ranks[min(ranks)] / EVENTS
        with path.open("rb") as stream:
            stream.seek(max(path.stat().st_size - _TAIL, 0))
            data = stream.read(_TAIL)
    except (OSError, ValueError):
        return 0, None
    events, _ = parse_events(data[data.find(b"\n") + 1 :] or data, where=EVENTS, rank=0)
    for event in reversed(events):
        for each in reversed(list(unpacked(event))):
            value = each.fields.get("value")
            if each.kind == "loss" and isinstance(value, int | float) and sound(each):
                return each.step, float(value)
    return 0, None
