"""The text of compute-sanitizer, read as it comes.

Enters: pieces of its output, cut anywhere. Leaves: a ``Complaint`` for each block that reports something. Lines that
do not begin with its mark (``=========``) are the script's own and are left out; a line inside a block that says
nothing known is kept as text, so that another version of the tool loses no complaint.

    ========= Invalid __global__ write of size 4 bytes
    =========     at kernel(float *)+0x70 in file.cu:12
    =========     by thread (3,0,0) in block (1,0,0)
    =========     Address 0x7f... is out of bounds
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_MARK = re.compile(r"^\s*=========( ?)(.*)$")
_INVALID = re.compile(
    r"(?P<what>Invalid|Misaligned)(?: (?P<space>__\w+__|shared|local|global))? (?P<access>read|write|atomic)"
    r"(?: of size (?P<size>\d+))?",
    re.IGNORECASE,
)
_RACE = re.compile(
    r"(?:(?P<level>Error|Warning|Info): )?(?:Race reported between (?P<access>\w+) access at (?P<place>.+)"
    r"|Potential (?P<hazard>WAW|WAR|RAW) hazard detected at (?P<space>__\w+__) (?P<address>\S+)"
    r" in block (?P<block>\([^)]*\)))",
    re.IGNORECASE,
)
_AND = re.compile(r"and (?P<access>\w+) access at (?P<place>.+?)(?: \[(?P<hazards>\d+) hazards?\])?$", re.IGNORECASE)
_HAZARD_THREAD = re.compile(
    r"(?P<access>Read|Write) Thread (?P<thread>\([^)]*\)) at (?P<offset>\S+) in (?P<place>.+)", re.I
)
_UNINITIALISED = re.compile(
    r"Uninitialized (?P<space>__\w+__) memory (?P<access>read|access)(?: of size (?P<size>\d+))?"
    r"|Uninitialized access at",
    re.IGNORECASE,
)
_BARRIER = re.compile(r"Barrier error detected\.?\s*(?P<why>.*)|(?P<cluster>Invalid arguments?|Divergent thread.*)")
_API = re.compile(r"Program hit (?P<name>\w+) \(error (?P<code>\d+)\)")
_LEAK = re.compile(r"Leaked (?P<size>[\d,]+) bytes at (?P<address>\S+)")
_AT = re.compile(r"at (?P<place>.+)")
_PLACE = re.compile(r"(?P<kernel>.+?)\+(?P<offset>0x[0-9a-f]+)(?: in (?P<file>.+?))?$", re.IGNORECASE)
_OLD_PLACE = re.compile(r"(?P<offset>0x[0-9a-f]+) in (?:(?P<file>\S+?:\d+):)?(?P<kernel>.+)$", re.IGNORECASE)
_THREAD = re.compile(r"by thread (?P<thread>\([^)]*\)) in block (?P<block>\([^)]*\))")
_ADDRESS = re.compile(r"Address (?P<address>0x[0-9a-f]+)(?: is (?P<state>.+))?", re.IGNORECASE)
_NEAR = re.compile(r"and is (?P<near>.+)")
_HOST = re.compile(r"Host Frame: ?(?P<frame>.+)")
_DEVICE = re.compile(r"Device Frame: ?(?P<frame>.+)")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (?P<errors>\d+) errors?)|(?:RACECHECK SUMMARY: (?P<hazards>\d+) hazards?)")
_NOISE = re.compile(
    r"COMPUTE-SANITIZER|Internal Sanitizer|Target application|Error: process didn't|No attachable process|LEAK SUMMARY"
)
_MOST_FRAMES = 8
_MOST_TEXT = 20


@dataclass(slots=True)
class Complaint:
    """One block of the output."""

    error: str
    """invalid, misaligned, race, uninitialised, barrier, leak, api, or other."""
    text: str
    """Its first line."""
    known: dict[str, Any] = field(default_factory=dict)
    host: list[str] = field(default_factory=list)
    more: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        """Complaints with the same key are the same fault, met by another thread."""
        place = [str(self.known.get(name, "")) for name in ("access", "kernel", "offset")]
        return (self.error, *place) if any(place[1:]) else (self.error, self.text)

    def fields(self) -> dict[str, Any]:
        told = {"error": self.error, "text": self.text, **self.known, "host": self.host, "more": self.more}
        return {name: value for name, value in told.items() if value not in (None, "", [])}


@dataclass(slots=True)
class Summary:
    errors: int | None = None


class Reader:
    """Text in, complaints out; keeps an unfinished line and an unfinished block."""

    def __init__(self) -> None:
        self.summary = Summary()
        self._rest = ""
        self._open: Complaint | None = None

    def feed(self, text: str) -> Iterator[Complaint]:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            yield from self._line(line.rstrip("\r"))

    def finish(self) -> Iterator[Complaint]:
        rest, self._rest = self._rest, ""
        if rest:
            yield from self._line(rest)
        yield from self._closed()

    def _line(self, line: str) -> Iterator[Complaint]:
        marked = _MARK.match(line)
        if marked is None:
            return
        words = marked[2].strip()
        if not words:
            yield from self._closed()
        elif ended := _SUMMARY.search(words):
            yield from self._closed()
            self.summary.errors = int(ended["errors"] or ended["hazards"])
        elif marked[2].startswith(" "):
            self._detail(words)
        elif not _NOISE.search(words):
            yield from self._closed()
            self._open = begun(words)

    def _closed(self) -> Iterator[Complaint]:
        ended, self._open = self._open, None
        if ended is not None:
            yield ended

    def _detail(self, words: str) -> None:
        if self._open is not None:
            detail(self._open, words)


def begun(words: str) -> Complaint:
    """The first line of a block."""
    if found := _RACE.search(words):
        return _race(words, found)
    if found := _UNINITIALISED.search(words):
        return Complaint("uninitialised", words, _named(found, "space", "access", "size"))
    if found := _INVALID.search(words):
        error = "misaligned" if found["what"].lower() == "misaligned" else "invalid"
        return Complaint(error, words, _named(found, "space", "access", "size"))
    if found := _LEAK.search(words):
        return Complaint("leak", words, {"size": int(found["size"].replace(",", "")), "address": found["address"]})
    if found := _API.search(words):
        return Complaint("api", words, {"name": found["name"], "code": int(found["code"])})
    if found := _BARRIER.search(words):
        return Complaint("barrier", words)
    return Complaint("other", words)


def _race(words: str, found: re.Match[str]) -> Complaint:
    known = {**_named(found, "hazard", "space", "address", "block"), "level": (found["level"] or "error").lower()}
    if found["place"]:
        known |= {**place(found["place"]), "access": found["access"].lower(), "others": []}
    return Complaint("race", words, known)


def detail(complaint: Complaint, words: str) -> None:
    """A further line of a block."""
    known = complaint.known
    if found := _HOST.match(words):
        if len(complaint.host) < _MOST_FRAMES:
            complaint.host.append(found["frame"])
    elif found := _THREAD.match(words):
        known.update(_named(found, "thread", "block"))
    elif found := _ADDRESS.match(words):
        known.update(_named(found, "address", "state"))
        if "misaligned" in (found["state"] or ""):
            complaint.error = "misaligned"
    elif found := _AND.match(words):
        known.setdefault("others", []).append({**place(found["place"]), "access": found["access"].lower()})
        if found["hazards"]:
            known["hazards"] = known.get("hazards", 0) + int(found["hazards"])
    elif found := _HAZARD_THREAD.match(words):
        _meets(known, found)
    elif found := _NEAR.match(words):
        known["near"] = found["near"]
    elif (found := _AT.match(words)) and "kernel" not in known:
        known.update(place(found["place"]))
    elif len(complaint.more) < _MOST_TEXT and not _DEVICE.match(words):
        complaint.more.append(words)


def _meets(known: dict[str, Any], found: re.Match[str]) -> None:
    """A line of a hazard: which thread touches the word, and where in which kernel."""
    touched = {**place(f"{found['offset']} in {found['place']}"), "thread": found["thread"]}
    touched["access"] = found["access"].lower()
    if "kernel" not in known:
        known.update(touched)
    known.setdefault("others", []).append(touched)


def place(text: str) -> dict[str, Any]:
    """ "kernel(float *)+0x70 in file.cu:12", or as older versions say it, "0x70 in file.cu:12:kernel(float *)"."""
    found = _PLACE.match(text) or _OLD_PLACE.match(text)
    if found is None:
        return {"kernel": text}
    return {**_named(found, "kernel", "offset"), **({"file": found["file"]} if found["file"] else {})}


def _named(found: re.Match[str], *names: str) -> dict[str, Any]:
    told = found.groupdict()
    values = {name: told.get(name) for name in names}
    return {
        name: int(value) if name == "size" else value.lower() if name == "access" else value.strip()
        for name, value in values.items()
        if value
    }
