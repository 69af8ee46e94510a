"""The text of compute-sanitizer, read as it comes.

Enters: pieces of its output, cut anywhere. Leaves: a ``Complaint`` for each block that reports something, and a
``Summary``. Lines that do not begin with its mark (``=========``) are the script's own and are left out; a line inside
a block that says nothing known is kept as text, so that another version of the tool loses no complaint.

    ========= Invalid __global__ write of size 4 bytes
    =========     at device_function(float *)+0x70 in file.cu:12
    =========     by thread (3,0,0) in block (1,0,0)
    =========     Address 0x7f... is out of bounds
    =========         Device Frame: kernel(float *)+0x90 in file.cu:40

The forms are those of NVIDIA's manual (and of cuda-memcheck, where they differ): access errors, both reports of
racecheck, initcheck with its copies to the host, synccheck, failing calls, leaks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_MARK = re.compile(r"^\s*=========( ?)(.*)$")
_LEVEL = re.compile(r"(?P<level>error|warn|info)(?:ing)?:", re.IGNORECASE)
_INVALID = re.compile(
    r"(?P<perhaps>Potential )?(?P<what>Invalid|Misaligned)(?: (?P<space>__\w+__|shared|local|global))?"
    r" (?P<access>read|write|atomic|reduction|access)(?: of size (?P<size>\d+))?",
    re.IGNORECASE,
)
_RACE = re.compile(
    r"Race reported between (?P<access>\w+) access at (?P<place>.+)"
    r"|Potential (?P<hazard>WAW|WAR|RAW) hazard(?: \([^)]*\))? detected at (?P<space>__\w+__) (?P<address>\S+)"
    r" in block (?P<block>\([^)]*\))",
    re.IGNORECASE,
)
_AND = re.compile(r"and (?P<access>\w+) access at (?P<place>.+?)(?: \[(?P<hazards>[\d,]+) hazards?\])?$", re.IGNORECASE)
_HAZARD_THREAD = re.compile(r"(?P<access>Read|Write) Thread (?P<thread>\([^)]*\)) at (?P<place>.+)", re.IGNORECASE)
_UNINITIALISED = re.compile(
    r"Uninitialized (?P<space>__\w+__) memory (?P<access>read|access)(?: of size (?P<size>\d+))?", re.IGNORECASE
)
_HOST_ACCESS = re.compile(r"Host API memory access error at host access to (?P<address>\S+) of size (?P<size>\d+)")
_COPIED = re.compile(r"(?P<what>Uninitialized|Invalid) access at (?P<at>\S+) on access by (?P<by>.+?)\.?$")
_BARRIER = re.compile(r"(?:Barrier|Warpgroup MMA sequence) error detected")
_DEADLOCK = re.compile(
    r"Deadlock detected .*starting at (?P<thread>\([^)]*\)) in block (?P<block>\([^)]*\)).* at (?P<place>.+)$"
)
_API = re.compile(
    r"Program hit (?P<name>.+?) \(error (?P<code>\d+)\)(?:.* on CUDA API call to (?P<call>\w+))?|CUDA API Error: "
)
_LEAK = re.compile(r"Leaked (?P<size>[\d,]+) bytes at (?P<address>\S+)")
_AT = re.compile(r"at (?P<place>.+)")
_CLONE = re.compile(r"\[clone (?P<kernel>.+)\] (?P<inside>.+)$")
_PLACE = re.compile(r"(?P<kernel>.+?)[+:](?P<offset>0x[0-9a-f]+)(?: in (?P<file>.+?))?$", re.IGNORECASE)
_OLD_PLACE = re.compile(r"(?P<offset>0x[0-9a-f]+) in (?:(?P<file>.+?:\d+):)?(?P<kernel>.+)$", re.IGNORECASE)
_OLD_FRAME = re.compile(r"(?:(?P<file>.+?:\d+):)?(?P<kernel>.+?)(?: \(.+ : (?:0x[0-9a-f]+)\)| \[0x[0-9a-f]+\])$", re.I)
_THREAD = re.compile(r"by thread (?P<thread>\([^)]*\)) in block (?P<block>\([^)]*\))")
_ADDRESS = re.compile(r"(?:Address|Access (?:to|at)) (?P<address>0x[0-9a-f]+)(?: is (?P<state>.+))?", re.IGNORECASE)
_NEAR = re.compile(r"and is (?P<near>.+)")
_HOST = re.compile(r"Host Frame: ?(?P<frame>.+)")
_DEVICE = re.compile(r"Device Frame: ?(?P<frame>.+)")
_LIBRARY = re.compile(r"in (?P<library>\S.*)")
_BACKTRACE = re.compile(r"Saved host backtrace")
_UNPRINTED = re.compile(r"SUMMARY: (?P<count>[\d,]+) (?:errors?|hazards?) (?:were|was) not printed")
_SUMMARY = re.compile(
    r"ERROR SUMMARY: (?P<errors>[\d,]+) errors?"
    r"|RACECHECK SUMMARY: (?P<hazards>[\d,]+) hazards?(?: displayed \((?P<hard>[\d,]+) errors?, (?P<mild>[\d,]+))?"
)
_DOUBT = re.compile(
    r"Internal Sanitizer|Results might be incorrect|No attachable process|before first instrumented API call"
    r"|analysis incomplete|not supported",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"COMPUTE-SANITIZER|CUDA-MEMCHECK|Target application|Error: process didn't|LEAK SUMMARY|Process ID:"
    r"|--target-processes|--launch-timeout|This tool is deprecated|Please use the compute-sanitizer"
)
_DETAIL = re.compile(
    r"(?:at|and|by thread|Address|Access (?:to|at)|(?:Host|Device) Frame|Saved host|(?:Read|Write) Thread"
    r"|Current Value|(?:Uninitialized|Invalid) access at)\b"
)
"""Lines that go on with a block, however far they are indented."""
_NUMBER = re.compile(r"0x[0-9a-f]+|\d[\d,]*", re.IGNORECASE)
_MOST_FRAMES = 8
_MOST_TEXT = 20
_MOST_DOUBTS = 4


@dataclass(slots=True)
class Complaint:
    """One block of the output."""

    error: str
    """invalid, misaligned, race, absent, uninitialised, unwritten-copy, barrier, leak, api, or other."""
    text: str
    """Its first line."""
    known: dict[str, Any] = field(default_factory=dict)
    host: list[str] = field(default_factory=list)
    device: list[dict[str, Any]] = field(default_factory=list)
    """Who called the function at fault on the device; the last is the kernel."""
    more: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        """Complaints with the same key are the same fault, met by another thread or at another address."""
        place = [str(self.known.get(name, "")) for name in ("level", "access", "kernel", "offset", "inside")]
        if any(place[2:]):
            return (self.error, *place)
        return (self.error, _NUMBER.sub("#", self.text), *(frame.partition(" ")[0] for frame in self.host))

    def fields(self) -> dict[str, Any]:
        told = {"error": self.error, "text": self.text, **self.known, "host": self.host, "more": self.more}
        return {name: value for name, value in told.items() if value not in (None, "", [])}


@dataclass(slots=True)
class Summary:
    errors: int | None = None
    """None until the tool has come to its end; of several processes, all together."""
    unprinted: int = 0
    doubts: list[str] = field(default_factory=list)
    """What the tool said about itself: that it saw nothing, or not all."""


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
        if not words or "SUMMARY: " in words:
            yield from self._closed()
            self._sum_up(words)
        elif self._open is not None and (marked[2].startswith(" ") or _DETAIL.match(words)):
            detail(self._open, words)
        elif _DOUBT.search(words):
            yield from self._closed()
            if len(self.summary.doubts) < _MOST_DOUBTS:
                self.summary.doubts.append(words)
        elif not marked[2].startswith(" ") and not _NOISE.search(words):
            yield from self._closed()
            self._open = begun(words)

    def _sum_up(self, words: str) -> None:
        if left := _UNPRINTED.search(words):
            self.summary.unprinted += _count(left["count"])
        elif ended := _SUMMARY.search(words):
            counted = _count(ended["errors"] or ended["hazards"])
            counted = max(counted, _count(ended["hard"]) + _count(ended["mild"]))
            self.summary.errors = (self.summary.errors or 0) + counted

    def _closed(self) -> Iterator[Complaint]:
        ended, self._open = self._open, None
        if ended is not None:
            _to_the_kernel(ended)
            yield ended


def _count(text: str | None) -> int:
    return int(text.replace(",", "")) if text else 0


def begun(words: str) -> Complaint:
    """The first line of a block."""
    if found := _RACE.search(words):
        return _race(words, found)
    if found := _UNINITIALISED.search(words):
        return Complaint("uninitialised", words, _named(found, "space", "access", "size"))
    if found := _HOST_ACCESS.search(words):
        return Complaint("other", words, _named(found, "address", "size"))
    if found := _LEAK.search(words):
        return Complaint("leak", words, {"size": _count(found["size"]), "address": found["address"]})
    if found := _API.search(words):
        return Complaint("api", words, _named(found, "name", "call", "code"))
    if _BARRIER.search(words):
        return Complaint("barrier", words)
    if found := _DEADLOCK.search(words):
        return Complaint("barrier", words, {**place(found["place"]), **_named(found, "thread", "block")})
    if found := _INVALID.match(words):
        error = "misaligned" if found["what"].lower() == "misaligned" else "absent" if found["perhaps"] else "invalid"
        return Complaint(error, words, _named(found, "space", "access", "size"))
    return Complaint("other", words)


def _race(words: str, found: re.Match[str]) -> Complaint:
    level = _LEVEL.match(words)
    grade = level["level"].lower() if level else "error"
    known = _named(found, "hazard", "space", "address", "block")
    known["level"] = "warning" if grade == "warn" else grade
    if found["place"]:
        known |= {**place(found["place"]), "access": found["access"].lower(), "others": []}
    return Complaint("race", words, known)


def detail(complaint: Complaint, words: str) -> None:
    """A further line of a block."""
    known = complaint.known
    if found := _HOST.match(words):
        if len(complaint.host) < _MOST_FRAMES:
            complaint.host.append(found["frame"])
    elif found := _DEVICE.match(words):
        complaint.device = [*complaint.device[: _MOST_FRAMES - 1], _frame(found["frame"])]
    elif found := _THREAD.match(words):
        known.update(_named(found, "thread", "block"))
    elif found := _ADDRESS.match(words):
        known.update(_named(found, "address", "state"))
        if "misaligned" in (found["state"] or ""):
            complaint.error = "misaligned"
    elif found := _AND.match(words):
        known.setdefault("others", []).append({**place(found["place"]), "access": found["access"].lower()})
        if found["hazards"]:
            known["hazards"] = known.get("hazards", 0) + _count(found["hazards"])
    elif found := _HAZARD_THREAD.match(words):
        _meets(known, found)
    elif found := _COPIED.match(words):
        complaint.error = "unwritten-copy" if found["what"] == "Uninitialized" else "invalid"
        known.update({"at": found["at"], "by": found["by"]})
    elif found := _NEAR.match(words):
        known["near"] = found["near"]
    elif (found := _AT.match(words)) and "kernel" not in known:
        known.update(place(found["place"]))
    elif (found := _LIBRARY.match(words)) and complaint.host:
        if " in " not in complaint.host[-1]:
            complaint.host[-1] += f" in {found['library']}"
    elif len(complaint.more) < _MOST_TEXT and not _BACKTRACE.match(words):
        complaint.more.append(words)


def _meets(known: dict[str, Any], found: re.Match[str]) -> None:
    """A line of a hazard: which thread touches the word, and where in which kernel."""
    touched = {**place(found["place"]), "thread": found["thread"], "access": found["access"].lower()}
    if "kernel" not in known:
        known.update(touched)
    known.setdefault("others", []).append(touched)


def _to_the_kernel(complaint: Complaint) -> None:
    """Names the kernel, where the tool named a function that it calls first."""
    known, outer = complaint.known, complaint.device[-1] if complaint.device else {}
    if not outer or outer["kernel"] == known.get("kernel"):
        return
    if "kernel" in known:
        known["inside"] = shown(known)
    for name in ("offset", "file"):
        known.pop(name, None)
    known.update(outer)


def place(text: str) -> dict[str, Any]:
    """ "kernel(float *)+0x70 in file.cu:12", or as older versions say it, "0x70 in file.cu:12:kernel(float *)".

    A function that stands by itself for one kernel is told with it: "[clone kernel(int *)] function()+0x10".
    """
    if clone := _CLONE.match(text):
        inner = place(clone["inside"])
        return {**inner, "kernel": clone["kernel"], "inside": inner["kernel"]}
    found = _PLACE.match(text) or _OLD_PLACE.match(text)
    return _parts(found) if found is not None else {"kernel": text}


def _frame(text: str) -> dict[str, Any]:
    """A frame of the device: like a place, or with its offset behind it, in parentheses or brackets."""
    found = _OLD_FRAME.match(text)
    return _parts(found) if found is not None else place(text)


def _parts(found: re.Match[str]) -> dict[str, Any]:
    return {**_named(found, "kernel", "offset"), **({"file": found["file"]} if found["file"] else {})}


def shown(place: dict[str, Any]) -> str:
    """A place as the tool says it."""
    offset = f"+{place['offset']}" if place.get("offset") else ""
    return f"{place['kernel']}{offset}" + (f" in {place['file']}" if place.get("file") else "")


def _named(found: re.Match[str], *names: str) -> dict[str, Any]:
    told = found.groupdict()
    values = {name: told.get(name) for name in names}
    return {
        name: int(value) if name in ("size", "code") else value.lower() if name == "access" else value.strip()
        for name, value in values.items()
        if value
    }
