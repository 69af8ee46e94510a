"""Where in the user's own files a finding stands: the file and the line that its evidence names.

Enters: a ``Finding`` and its ``Run``. Leaves: a ``Place``, relative to the repository that holds the run's working
directory (or to that directory), or None. Records name lines in many ways: a traceback, the stacks of a hang, the
caller of a copy, a read or a loss, the line of a log. What says ``train.py:12`` is the script, a file that a traceback
of the run names in full, or one that lies beside the script; otherwise nobody knows which file is meant.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from brickprof.records import Event
from brickprof.rules import standstill
from brickprof.rules.failures import failure

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Diagnosis, Finding
    from brickprof.run import Run

EVIDENCE, SCRIPT = "evidence", "script"
_EVENT = re.compile(r"event:(\d+)@(-?\d+)")
_SITE = re.compile(r"([^\s:/\\\x00-\x1f]{1,200}\.py):(\d{1,7})(?: in \S+)?")
_NAMED = re.compile(r"[\w.+-]{1,200}\.py:\d{1,7}")
_DEEPEST, _MOST_SITES, _LONGEST = 4, 400, 1_000
_MOST_PARENTS = 40
_TRACED = ("exception", "hang", "stacks")
_WORDS = ("message", "text")
"""Fields of an event in which somebody speaks: a line named there is a word like any other."""


@dataclass(frozen=True, slots=True)
class Place:
    file: str
    """With slashes; relative unless ``inside`` is False."""
    line: int
    inside: bool
    """Whether it lies in the user's repository or working directory."""
    by: str
    """``evidence``: a record names it; ``script``: no record names a line, and this is the script (or the log)."""


class Places:
    """Looks places up. Without a run only the script is known."""

    def __init__(self, diagnosis: Diagnosis, run: Run | None) -> None:
        self._run = run
        told = str(diagnosis.run.get("script") or "")
        self._script = _script([run.meta.script, *run.meta.argv] if run is not None else [told])
        self._wanted = {key for finding in diagnosis.findings for key in _keys(finding)}

    def of(self, finding: Finding) -> Place | None:
        """The user's line behind ``finding``; where no record names one, the script; None when that is unknown too."""
        events = self._events(finding)
        for told in (self._traced(events), self._called(finding, events), self._logged(events)):
            if told is not None:
                return told
        return self.script

    @cached_property
    def script(self) -> Place | None:
        """The script itself, or the log."""
        files = self._logs
        file = files[0] if files else self._whole(self._script) if self._script else ""
        return self._placed(file, 1, SCRIPT) if file else None

    @cached_property
    def root(self) -> str:
        """What paths are relative to; empty when nobody knows where the run was."""
        from_log = os.getcwd() if self._logs else ""
        return _repository(self._cwd or from_log)

    # -- ways in which records name a line

    def _traced(self, events: list[Event]) -> Place | None:
        """The innermost of the user's own frames that lies in the repository, else the innermost."""
        for event in events:
            own = [frame for frame in _frames(event) if not standstill.foreign(frame.file) and frame.line > 0]
            placed = [place for frame in own if (place := self._placed(frame.file, frame.line, EVIDENCE))]
            inside = [place for place in placed if place.inside]
            if inside:
                return inside[0]
        return None

    def _called(self, finding: Finding, events: list[Event]) -> Place | None:
        """Of the lines that the evidence names the one that the finding speaks of; else one that stands alone."""
        sites = [_sites(event) for event in events]
        known = {site for found in sites for site in found}
        texts = [finding.brick, finding.symptom, *(why.finding for why in reversed(finding.whys))]
        spoken = [site for text in texts for site in _NAMED.findall(text[:_LONGEST]) if site in known]
        alone = [found[0] for found in reversed(sites) if len(found) == 1]
        for site in (*spoken, *alone):
            name, _, line = site.rpartition(":")
            file = self._by_name(name)
            place = self._placed(file, int(line), EVIDENCE) if file else None
            if place is not None and place.inside:
                return place
        return None

    def _logged(self, events: list[Event]) -> Place | None:
        """The line of the log that says what happened."""
        by_name = {os.path.basename(file): file for file in self._logs}
        for event in events:
            line, name = event.fields.get("line"), event.fields.get("file")
            file = by_name.get(str(name)) if name else self._logs[0] if len(self._logs) == 1 else None
            if file and isinstance(line, int) and line > 0:
                return self._placed(file, line, EVIDENCE)
        return None

    # -- which file is meant

    def _events(self, finding: Finding) -> list[Event]:
        return [self._kept[key] for key in _keys(finding) if key in self._kept]

    @cached_property
    def _kept(self) -> dict[tuple[int, int], Event]:
        """The events that findings cite and those that hold a traceback: a long run has millions of others."""
        parts = self._run.parts if self._run is not None and self._wanted else []
        return {
            (part.rank, event.seq): event
            for part in parts
            for event in part.events
            if event.kind in _TRACED or (part.rank, event.seq) in self._wanted
        }

    @cached_property
    def _logs(self) -> list[str]:
        files = self._run.meta.extra.get("files") if self._run is not None and self._run.meta.level == "log" else None
        return [os.path.abspath(str(file)) for file in files if file != "-"] if isinstance(files, list) else []

    @cached_property
    def _cwd(self) -> str:
        told = self._run.meta.extra.get("cwd") if self._run is not None else None
        return str(told) if told and os.path.isabs(str(told)) else ""

    @cached_property
    def _known(self) -> dict[str, str]:
        """Files that the run names in full, by their last name; the script above all."""
        traced = [event for event in self._kept.values() if event.kind in _TRACED]
        files = [frame.file for event in traced for frame in _frames(event) if not standstill.foreign(frame.file)]
        known = {os.path.basename(file): file for file in files if os.path.isabs(file)}
        return known | ({os.path.basename(self._script): self._whole(self._script)} if self._script else {})

    def _by_name(self, name: str) -> str:
        if name in self._known:
            return self._known[name]
        homes = dict.fromkeys((os.path.dirname(self._whole(self._script)) if self._script else "", self._cwd))
        beside = [os.path.join(home, name) for home in homes if home and os.path.isabs(home)]
        return next((file for file in beside if os.path.isfile(file)), "")

    def _whole(self, file: str) -> str:
        return os.path.normpath(os.path.join(self._cwd, file))

    def _placed(self, file: str, line: int, by: str) -> Place | None:
        if not file or len(file) > _LONGEST or "\x00" in file or file.startswith("<"):
            return None
        whole = self._whole(file)
        if not os.path.isabs(whole):
            return None if whole.startswith("..") else Place(whole.replace(os.sep, "/"), line, True, by)
        root = self.root
        if root and whole.startswith(root.rstrip(os.sep) + os.sep):
            return Place(os.path.relpath(whole, root).replace(os.sep, "/"), line, True, by)
        return Place(whole.replace(os.sep, "/"), line, False, by)


def _script(named: list[str]) -> str:
    """The script's file; what was started as a module, or attached itself, names one among its arguments, or none."""
    return next((name for name in named if name.endswith(".py") and not standstill.foreign(name)), "")


def _keys(finding: Finding) -> dict[tuple[int, int], None]:
    """Rank and number of the events that a finding cites, each once, the symptom's first."""
    named = (_EVENT.fullmatch(identity) for why in finding.whys for identity in why.evidence)
    return dict.fromkeys((int(match[2]), int(match[1])) for match in named if match)


def _repository(folder: str) -> str:
    """The checkout that holds ``folder``, where that can be seen from here; else ``folder``."""
    home = os.path.normpath(folder) if folder else ""
    for _ in range(_MOST_PARENTS):
        if not home or os.path.exists(os.path.join(home, ".git")):
            break
        above = os.path.dirname(home)
        home = above if above != home else ""
    return home or (os.path.normpath(folder) if folder else "")


def _frames(event: Event) -> list[standstill.Frame]:
    """Python frames of an event, the innermost first."""
    if event.kind == "exception":
        return list(reversed(failure(event).frames))
    if event.kind == "hang":
        stood = standstill.stand(event)
        return [frame for one in sorted(stood, key=lambda one: not one.stalled) for frame in one.frames]
    if event.kind == "stacks":
        crashed = standstill.crashed(event)
        return list(crashed.frames) if crashed is not None else []
    return []


def _sites(event: Event) -> list[str]:
    """Every ``file.py:line`` that stands anywhere in an event's fields, each once."""
    found: dict[str, None] = {}
    for text in _texts(event.fields, _DEEPEST):
        match = _SITE.fullmatch(text)
        if match and int(match[2]) > 0:
            found[f"{match[1]}:{int(match[2])}"] = None
        if len(found) >= _MOST_SITES:
            break
    return list(found)


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth > 0 and isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key, 0)
            yield from _texts(item, depth - 1) if key not in _WORDS else ()
    elif depth > 0 and isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item, depth - 1)
