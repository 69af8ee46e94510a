"""A run's folder, followed: what is new is taken in, and a scene can be had at any time.

Enters: the folder of a run, its own or somebody else's. Leaves: a ``Scene``. Read-only: files are opened for reading,
nothing is locked, no process is asked.
"""

from __future__ import annotations

import math
import os
import stat
import time
from pathlib import Path
from typing import Any

from brickprof import pulse
from brickprof.diagnosis.model import Diagnosis
from brickprof.errors import UnreadableInput
from brickprof.journal import EVENTS, PROCESS, PROCESS_RANK, SAMPLES, rank_folders, read_meta, read_slate
from brickprof.live.condition import Signs
from brickprof.live.course import Course, Means
from brickprof.live.gradients import Gradients
from brickprof.live.reading import Events, Rows
from brickprof.pulse import Beat
from brickprof.records import Event
from brickprof.reports.live.scene import Card, Rank, Scene
from brickprof.run.parts import unpacked
from brickprof.text import clean

_LAUNCH = frozenset((b"start", b"exited", b"signal", b"hang", b"card", b"exception", b"note"))
_OF_ALL = frozenset((b"run", b"exit", b"exception"))
_OF_FIRST = _OF_ALL | frozenset(
    (b"brick", b"loss", b"losses", b"grad", b"clip", b"anomaly", b"note", b"dropped", b"probe_off")
)
_RESCAN, _SLACK = 1.0, 0.05
"""Seconds between looks for new ranks; looks are not quite evenly spaced."""
_FEW_RANKS = 16
_MOST_NOTES = 4
_LONGEST_NAME = 200
_WIDEST = 2**63


class Follow:
    """One run. ``poll`` takes in what is new, ``scene`` tells what is known."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        may_read(folder)
        self.meta, self._meta_damage = read_meta(folder)
        self.signs = Signs(host=str(self.meta.host))
        self.diagnosis: Diagnosis | None = None
        self.judged = ""
        self.alarms = 0
        """How often something happened that the rules should look at soon."""
        self._files: dict[Path, Events] = {}
        self._rows: dict[Path, Rows] = {}
        self._ranks: dict[int, Path] = {}
        self._gone: frozenset[int] = frozenset()
        """Ranks whose process is no more, though they said nothing of an end."""
        self._scanned = -math.inf
        self._beaten = -math.inf
        self._loss = Means(Course("loss"))
        self._norm = Course("|grad|")
        self._unclipped = Course("|grad| before clipping")
        self._seconds = Course("seconds a step")
        self._last_loss: tuple[int, int] = (-1, 0)
        self._unwritten: list[tuple[int, float]] = []
        self._broken = False
        self._gradients = Gradients()
        self._cards: dict[int, dict[str, Any]] = {}
        self._notes: dict[str, None] = {}
        self._version = 0

    @property
    def first(self) -> int:
        """The rank whose numbers are drawn."""
        return min(self._ranks, default=0)

    # -- taking in

    def poll(self, now: float | None = None) -> bool:
        """Takes in what is new; whether anything was."""
        now = time.monotonic() if now is None else now
        if now - self._scanned >= _RESCAN - _SLACK:
            self._scanned = now
            self._scan()
        new = [event for file in self._files.values() for event in file.poll()]
        for event in new:
            self._take(event)
        rows = self._new_rows()
        beaten = self._beats(now)
        if new or rows or beaten:
            self._version += 1
        return bool(new or rows or beaten)

    def _scan(self) -> None:
        self._ranks = rank_folders(self.folder)
        self.signs.vanished = not self.folder.is_dir()
        paths = {PROCESS_RANK: self.folder / PROCESS}
        paths |= {rank: folder / EVENTS for rank, folder in self._ranks.items()}
        wanted = dict.fromkeys(paths, _OF_ALL) | {PROCESS_RANK: _LAUNCH, self.first: _OF_FIRST}
        self._files = {path: self._files.get(path) or Events(path, rank, wanted[rank]) for rank, path in paths.items()}
        self.signs.written = max((_written(path) for path in paths.values()), default=0.0)
        self._gone = self.signs.gone() if len(self._ranks) > 1 else frozenset()

    def _take(self, event: Event) -> None:
        self.signs.take(event)
        if event.rank == PROCESS_RANK:
            self._of_launch(event)
        elif event.rank == self.first:
            for each in unpacked(event):
                self._of_training(each)

    def _of_launch(self, event: Event) -> None:
        if event.kind == "card":
            card = self._cards.setdefault(_whole(event.fields.get("device")), {})
            if event.fields.get("what") in ("device", "sample", "throttle"):
                card.update(event.fields)
        elif event.kind == "hang":
            place = clean(event.fields.get("place") or event.fields.get("frame") or "", limit=80)
            self._note(f"nothing moved for {_number(event.fields.get('seconds')):.0f} s{place and f' in {place}'}")
            self.alarms += 1

    def _of_training(self, event: Event) -> None:
        fields = event.fields
        if event.kind == "loss":
            self._a_loss(event.step, _number(fields.get("value")), event.time_ns)
        elif event.kind == "grad" and fields.get("point", "step") == "step":
            self._norm.add(event.step, _number(fields.get("l2")))
        elif event.kind == "clip":
            self._unclipped.add(event.step, _number(fields.get("norm")))
        elif event.kind == "brick":
            name = str(fields.get("path") or fields.get("model") or "")
            self._gradients.names[_whole(fields.get("id"))] = clean(name, limit=_LONGEST_NAME)
        elif event.kind in ("anomaly", "exception"):
            self.alarms += 1
        elif event.kind == "note":
            self._note(clean(fields.get("text") or "", limit=160))
        elif event.kind == "probe_off":
            self._note(f"the probe {clean(fields.get('probe', ''), limit=40)} was switched off")
        elif event.kind == "dropped":
            self._note(f"records were dropped: {clean(fields.get('reason', ''), limit=80)}")

    def _a_loss(self, step: int, value: float, time_ns: int) -> None:
        last, when = self._last_loss
        if step != last:  # it goes back where a rank was started again
            if step == last + 1 and 0 < when < time_ns:
                self._seconds.add(step, (time_ns - when) / 1e9)
            self._last_loss = (step, time_ns)
        self._loss.add(step, value)
        broken = not math.isfinite(value)
        self.alarms += broken and not self._broken
        self._broken = broken

    def _new_rows(self) -> bool:
        if not self._ranks:
            return False
        path = self._ranks[self.first] / SAMPLES
        if path not in self._rows:
            self._rows = {path: Rows(path)}
        table = self._rows[path].poll()
        if table is not None:
            self._gradients.take(table)
        return table is not None

    def _beats(self, now: float) -> bool:
        """The pulses: of many ranks not at every look."""
        if len(self._ranks) > _FEW_RANKS and now - self._beaten < _RESCAN - _SLACK:
            return False
        self._beaten = now
        beats = {rank: beat for rank, folder in self._ranks.items() if (beat := pulse.read(folder)) is not None}
        before = self.signs.beats
        changed = any(rank not in before or before[rank].closed != beat.closed for rank, beat in beats.items())
        self.signs.beats = {**{rank: b for rank, b in self.signs.beats.items() if rank in self._ranks}, **beats}
        if changed and self._ranks:
            kept, _ = read_slate(self._ranks[self.first])
            last = self._last_loss[0]
            self._unwritten = sorted({step: value for step, _, value, _ in kept if step > last}.items())
        return changed

    def _note(self, text: str) -> None:
        if text:
            self._notes.pop(text, None)
            self._notes[text] = None

    # -- telling

    def scene(self) -> Scene:
        condition = self.signs.condition()
        ranks = tuple(self._rank(rank, self.signs.beats.get(rank)) for rank in sorted(self._ranks))
        tail = [*self._loss.open, *self._unwritten]
        loss = self._loss.course.series(tail)
        told = max(self._last_loss[0], *(step for step, _ in self._unwritten), 0)
        return Scene(
            run_id=clean(self.meta.run_id, limit=40),
            name=clean(self.folder.name, limit=_LONGEST_NAME),
            script=clean(self.meta.script, limit=120),
            condition=condition,
            elapsed=self._elapsed(over=condition.over),
            step=max((told, *(rank.step for rank in ranks))),
            loss=loss,
            norm=self._unclipped.series() or self._norm.series(),
            seconds=self._seconds.series(),
            heat=self._gradients.heat(self.first),
            ranks=ranks,
            cards=tuple(_card(self._cards[device]) for device in sorted(self._cards)),
            diagnosis=self.diagnosis,
            judged=self.judged,
            notes=self._told_notes(),
            read=self.read,
            version=self._version,
        )

    @property
    def read(self) -> float:
        """The share of the events that has been taken in."""
        size = sum(file.size for file in self._files.values())
        return min(sum(file.seen for file in self._files.values()) / size, 1.0) if size else 1.0

    @property
    def ended(self) -> bool:
        """Whether the run is over, as far as its first look tells."""
        self.poll()
        return self.signs.condition().over

    def _elapsed(self, *, over: bool) -> float:
        began = _whole(self.meta.started_ns) / 1e9
        if not began:
            began = min((event.time_ns / 1e9 for event in self.signs.ranks.values()), default=0.0)
        ended = (event.time_ns / 1e9 for event in (*self.signs.exited.values(), *self.signs.finished.values()))
        until = max(ended, default=self.signs.last_sign) if over else time.time()
        return max(until - began, 0.0) if began else 0.0

    def _rank(self, number: int, beat: Beat | None) -> Rank:
        if beat is None:
            return Rank(number, 0, state="no pulse")
        return Rank(
            number, beat.step, beat.loss, beat.norm, beat.lr,
            beat.step_ns / 1e9 if beat.step_ns > 0 else math.nan,
            self._doing(beat), max(time.time() - beat.beat_ns / 1e9, 0.0) if beat.beat_ns else 0.0,
            "gone" if number in self._gone else beat.state, beat.overhead,
        )  # fmt: skip

    def _doing(self, beat: Beat) -> str:
        if beat.state != "recording":
            return ""
        names = [self._gradients.names.get(brick, "") for brick in beat.open_bricks]
        place = next((name for name in reversed(names) if name), "")
        return " ".join(part for part in (place, beat.phase if beat.phase != "idle" else "") if part)

    def _told_notes(self) -> tuple[str, ...]:
        notes = list(self._notes)[-_MOST_NOTES:]
        if self._meta_damage:
            notes.append(clean(str(self._meta_damage), limit=160))
        for path, file in self._files.items():
            name = f"{path.parent.name}/{path.name}" if file.rank != PROCESS_RANK else path.name
            if file.lost:
                notes.append(f"{file.lost:,} damaged record{'s' * (file.lost != 1)} in {clean(name)}")
            if file.problem:
                notes.append(f"{clean(name)} cannot be read: {clean(file.problem)}")
        return tuple(notes)


def may_read(folder: Path) -> None:
    """``UnreadableInput`` where the folder, or a rank's, may not be read, or holds what would never end.

    A pipe that somebody put there in place of a file would hold up whoever opens it.
    """
    for each in (folder, *rank_folders(folder).values()):
        listable(each, folder)
        odd = next((path for path in each.iterdir() if _is_odd(path)), None)
        if odd is not None:
            raise UnreadableInput(f"{clean(odd)} is no plain file, so this run is not read.")


def listable(folder: Path, run: Path) -> None:
    """``UnreadableInput`` where ``folder``, a part of ``run``, may not be read; it says whose it is."""
    try:
        os.listdir(folder)
    except PermissionError:
        raise UnreadableInput(
            f"{clean(folder)} may not be read by you: it is {_owner(folder)}'s.",
            f"Its owner can allow it: chmod -R go+rX {clean(run)}",
        ) from None
    except OSError as error:
        raise UnreadableInput(f"{clean(folder)} cannot be read: {clean(error.strerror or error)}.") from None


def _is_odd(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:  # a link that leads nowhere, or gone meanwhile
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _owner(path: Path) -> str:
    try:
        return clean(path.owner())
    except (OSError, KeyError, NotImplementedError):
        return "somebody else"


def _card(fields: dict[str, Any]) -> Card:
    throttle = fields.get("throttle")
    return Card(
        clean(fields.get("name") or "card", limit=60),
        _number_or_none(fields.get("utilisation")),
        _whole(fields.get("memory_used")) or None,
        _whole(fields.get("memory_total")) or None,
        _number_or_none(fields.get("power")),
        _number_or_none(fields.get("power_limit")),
        _number_or_none(fields.get("temperature")),
        tuple(clean(word, limit=40) for word in throttle) if isinstance(throttle, list) else (),
    )


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.inf


def _number_or_none(value: Any) -> float | None:
    number = _number(value)
    return number if math.isfinite(number) else None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _WIDEST else 0
