"""What a log says in words: exceptions, signals, the scheduler's last line, the loss scaler's, the end.

Enters: the lines of a chunk that are no rows. Leaves: facts. One pattern of telling words goes over all of them at
once; only a line that it stops at is looked at closely, and a Python traceback is followed to its end, in as many
processes at a time as write theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from brickprof.logs.reading.model import Fact, Whole
from brickprof.logs.reading.numbers import number
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.logs.reading.tokens import Cut

_MOST_OF_A_KIND = 200
_MOST_OPEN = 256
_MOST_FRAMES = 64
_LONGEST = 600
_LONGEST_TRACEBACK = 2_000
_SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM", 2: "SIGINT"}
_HOW = {"SIGABRT": "abort", "SIGSEGV": "segfault", "SIGBUS": "segfault", "SIGINT": "cancelled"}
_RANK = re.compile(r"\[(?:default|rank|Rank|RANK)[ _]?(\d{1,7})\]|^\s*(\d{1,6}): |\[\d+,(\d{1,7})\]<std")
_TRIGGER = re.compile(
    rb"Traceback \(most|[Oo]ut [Oo]f [Mm]emory|OutOfMemory|illegal memory|device-side assert|Watchdog caught|"
    rb"Timeout at NCCL|[Mm]ismatch between collectives|NCCL error|ncclSystemError|ncclRemoteError|ncclInternalError|"
    rb"Xid|uncorrectable ECC|fallen off the bus|GPU is lost|SIG(?:ABRT|SEGV|KILL|TERM|BUS|INT|HUP)|exitcode|"
    rb"Segmentation fault|Aborted|Killed|Bus error|slurmstepd|DUE TO|oom[_-]kill|No space left|quota exceeded|"
    rb"KeyboardInterrupt|OVERFLOW|[Oo]verflow|[Cc]heckpoint|CHECKPOINT|[Rr]esum|[Tt]rain(?:ing)? (?:is |has |was )?"
    rb"(?:complete|finished|done|ended)|[Ff]inished training|[Dd]one training|Training completed|train_runtime|"
    rb"CUDA error|terminate called|RuntimeError|Fatal Python error|exiting program at"
)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r'\s*File "([^"]{1,400})", line (\d{1,9})(?:, in (.{1,200}))?')
_RAISED = re.compile(r"([A-Za-z_][\w.]{0,200})(?:: ?(.*))?$", re.DOTALL)
_BAR = re.compile(r"(\d{1,12})/\d{1,12} \[[\d:]+<")
_STEP = re.compile(r"(?i)(?:step|iteration|iter|checkpoint-)[\s:=_/]*(\d{1,15})")

_OOM_KILLED = r"oom[_-]kill|srun: error: .*Out Of Memory|Out [Oo]f [Mm]emory: Killed process|OOM ?Killed"
_CANCELLED = r"slurmstepd: .*CANCELLED|DUE TO (?:NODE|JOB)\b|\*\*\* (?:JOB|STEP) .*CANCELLED"

_Maker = Callable[[re.Match[str], str], Fact | None]


def _fact(kind: str, **fields: Any) -> _Maker:
    return lambda found, text: Fact(kind, 0, {**fields, "text": text})


def _signal(found: re.Match[str], text: str) -> Fact | None:
    said = next((group for group in found.groups() if group), "")
    name = said if said.startswith("SIG") else _SIGNALS.get(int(said), f"signal {said}")
    return Fact("ended", 0, {"how": _HOW.get(name, "signal"), "signal": name, "text": text})


def _xid(found: re.Match[str], text: str) -> Fact:
    return Fact("device", 0, {"what": "xid", "xid": int(found[1]), "text": text})


def _overflow(found: re.Match[str], text: str) -> Fact:
    values = found.groupdict()
    scale, to = number(values.get("scale") or ""), number((values.get("to") or "").rstrip("."))
    bar = _BAR.search(text)
    fields = {"scale": scale, "to": scale if to is None else to, "step": int(bar[1]) if bar else None}
    return Fact("overflow", 0, fields)


def _raised(found: re.Match[str], text: str) -> Fact:
    return Fact("exception", 0, {"type": found[1].split(".")[-1], "message": found[2].strip(), "frames": []})


def _out_of_memory(found: re.Match[str], text: str) -> Fact:
    return Fact("exception", 0, {"type": "OutOfMemoryError", "message": found[0].strip(), "frames": []})


def _disk_full(found: re.Match[str], text: str) -> Fact:
    return Fact("exception", 0, {"type": "OSError", "message": found[0].strip(), "frames": []})


def _watchdog(found: re.Match[str], text: str) -> Fact:
    fields: dict[str, Any] = {"what": "timeout", "text": text}
    for key, pattern in (("op", r"OpType=(\w+)"), ("seq", r"SeqNum=(\d{1,18})"), ("after_ms", r"ran for (\d{1,18})")):
        said = re.search(pattern, text)
        if said:
            fields[key] = said[1] if key == "op" else int(said[1])
    return Fact("collective", 0, fields)


def _checkpoint(found: re.Match[str], text: str) -> Fact | None:
    verb = found[0].lower()
    if "shards" in text:
        return None
    file = re.search(
        r"[\w.~-]*/[\w.-]*[A-Za-z_][^\s'\",;:)]*|[\w.-]+\.(?:pt|pth|ckpt|safetensors|bin|tar)\b|checkpoint-\d+", text
    )
    step = _STEP.search(text[found.start() :])
    op = "load" if re.search(r"load|resum|restor", verb) else "save"
    fields: dict[str, Any] = {"op": op, "file": file[0] if file else "", "step": int(step[1]) if step else None}
    return Fact("checkpoint", 0, fields) if file or step else None


_SPEAKING: tuple[tuple[re.Pattern[str], _Maker], ...] = tuple(
    (re.compile(pattern), made)
    for pattern, made in (
        (r"slurmstepd: .*DUE TO TIME LIMIT", _fact("ended", how="time-limit")),
        (r"DUE TO TIME LIMIT", _fact("ended", how="time-limit")),
        (r"DUE TO PREEMPTION|\bPREEMPTED\b", _fact("ended", how="preempted")),
        (_OOM_KILLED, _fact("ended", how="oom-killed")),
        (_CANCELLED, _fact("ended", how="cancelled")),
        (r"OVERFLOW!.*?[Aa]ttempted loss scale: (?P<scale>[\d.e+]+)(?:, reducing to (?P<to>[\d.e+]+))?", _overflow),
        (r"[Gg]radient overflow\.\s+Skipping step.*reducing loss scale to (?P<to>[\d.e+]+)", _overflow),
        (r"overflow detected.*setting loss scale to:? (?P<to>[\d.e+]+)", _overflow),
        (r"Watchdog caught collective operation timeout|Timeout at NCCL work", _watchdog),
        (r"[Mm]ismatch between collectives", _fact("collective", what="mismatch")),
        (r"NVRM: Xid \([^)]*\): (\d{1,4})", _xid),
        (r"Xid[ :(][^:]*: (\d{1,4})", _xid),
        (r"uncorrectable ECC", _fact("device", what="ecc")),
        (r"fallen off the bus|GPU is lost", _fact("device", what="lost")),
        (r"an illegal memory access was encountered|illegal memory access", _fact("device", what="illegal-address")),
        (r"device-side assert", _fact("device", what="assert")),
        (r"Signal (\d{1,2}) \(SIG\w+\) received|exitcode\s*[:=] ?-(\d{1,2})\b", _signal),
        (r"\b(SIG(?:ABRT|SEGV|KILL|BUS))\b", _signal),
        (r"(?:[Rr]eceived|[Cc]aught|[Gg]ot|by|[Ss]ignal)[ :]+(?:\w+ )?(SIG(?:TERM|HUP|INT))\b", _signal),
        (r"^(?:.*[: ])?Segmentation fault", _fact("ended", how="segfault", signal="SIGSEGV")),
        (r"^(?:.*[: ])?Aborted(?: \(core dumped\))?\s*$", _fact("ended", how="abort", signal="SIGABRT")),
        (r"^(?:.*[: ])?Bus error", _fact("ended", how="segfault", signal="SIGBUS")),
        (r"^(?:.*: (?:line \d+: )?\s*\d* ?|)Killed(?:\s{2,}\S.*)?\s*$", _fact("ended", how="signal", signal="SIGKILL")),
        (r"NCCL error|nccl(?:System|Remote|Internal)Error", _fact("collective", what="abort")),
        (r"(?:CUDA|HIP) out of memory\..{0,300}", _out_of_memory),
        (r"\b([\w.]*(?:OutOfMemoryError|RuntimeError)): (.+)", _raised),
        (r"(?:No space left on device|[Dd]isk quota exceeded)", _disk_full),
        (r"\bKeyboardInterrupt\b", _fact("ended", how="cancelled", signal="SIGINT")),
        (r"'train_runtime'|\"train_runtime\"", _fact("finished")),
    )
)  # fmt: skip
"""Lines like these are never rows."""
_ASIDE: tuple[tuple[re.Pattern[str], _Maker], ...] = (
    (
        re.compile(
            r"(?i)(?:\b(?:sav|writ)(?:ing|ed|en)|\bload(?:ing|ed)|\bresum(?:ing|ed)|\brestor(?:ing|ed))"
            r"\b.{0,60}?(?:checkpoint|from|training)|checkpoint.{0,80}?\b(?:saved|loaded|written|restored)"
        ),
        _checkpoint,
    ),
    (
        re.compile(
            r"(?i)\btrain(?:ing)? (?:is |has |was )?(?:been )?(?:completed?|finished|done|ended)\b|"
            r"\b(?:finished|done) training\b|^exiting program at"
        ),
        _fact("finished"),
    ),
)


def speaks(line: bytes) -> bool:
    """Whether this line tells of an incident: whatever numbers are in it, it is no row."""
    if _TRIGGER.search(line) is None:
        return False
    text = line[-8192:].decode("utf-8", "replace")
    return any(pattern.search(text) for pattern, _ in _SPEAKING)


class Watch:
    """Reads what is no row, chunk after chunk."""

    def __init__(self, spoken: Callable[[bytes, int], Iterator[Fact]] | None = None) -> None:
        self._spoken = spoken
        self._open: dict[str, _Traceback] = {}
        self._given: dict[tuple[str, str], int] = {}

    def take(self, found: Cut, left: Whole) -> Iterator[Fact]:
        """The facts in these lines of the chunk."""
        if not len(left):
            return
        telling = pc.match_substring_regex(found.texts(left), _TRIGGER.pattern.decode())
        for place in self._to_look_at(pc.indices_nonzero(telling).to_pylist(), len(left)):
            line = int(left[place])
            yield from self._line(found.text(line), int(found.lines[line]))
        if self._spoken is not None:
            for line in left.tolist():
                yield from self._spoken(found.text(line), int(found.lines[line]))

    def _to_look_at(self, places: list[int], count: int) -> Iterator[int]:
        """Those that hold a telling word; and while a traceback is open, all."""
        place, after = 0, iter([*places, count])
        coming = next(after)
        while place < count:
            if not self._open:
                while coming < place:
                    coming = next(after)
                place = coming
                if place >= count:
                    return
            yield place
            place += 1

    def end(self) -> Iterator[Fact]:
        """A traceback that the log ends in has no last line: what it was is not known, but where."""
        for begun in self._open.values():
            if begun.frames:
                yield from self._counted(begun.fact("", "the log ends within its traceback"))
        self._open.clear()

    def _line(self, raw: bytes, line: int) -> Iterator[Fact]:
        text = raw[:4096].decode("utf-8", "replace") if len(raw) <= 4096 else raw[-4096:].decode("utf-8", "replace")
        rank = _rank(text)
        start = _TRACEBACK.search(text)
        if start is not None:
            self._begin(text[: start.start()], line, rank)
            return
        for prefix in [prefix for prefix in self._open if text.startswith(prefix)][-1:]:
            ended, fact = self._open[prefix].reads(text[len(prefix) :])
            if ended:
                del self._open[prefix]
                if fact is not None:
                    yield from self._counted(fact)
                    yield from self._counted(*_besides(fact))
                    return
            else:
                return
        yield from self._counted(*_said(text, line, rank))

    def _begin(self, prefix: str, line: int, rank: int | None) -> None:
        prefix = prefix if len(prefix) <= 80 else ""
        if len(self._open) >= _MOST_OPEN:
            self._open.pop(next(iter(self._open)))
        self._open[prefix] = _Traceback(line, rank)

    def _counted(self, *facts: Fact) -> Iterator[Fact]:
        """Many processes say the same; a few hundred times is enough."""
        for fact in facts:
            key = fact.kind, str(fact.fields.get("how") or fact.fields.get("what") or fact.fields.get("type") or "")
            self._given[key] = self._given.get(key, 0) + 1
            if self._given[key] <= _MOST_OF_A_KIND or fact.kind in ("overflow", "checkpoint"):
                yield fact


class _Traceback:
    """One that is being read."""

    def __init__(self, line: int, rank: int | None) -> None:
        self.line, self.rank = line, rank
        self.frames: list[str] = []
        self._read = 0

    def reads(self, text: str) -> tuple[bool, Fact | None]:
        """Whether it ends with this line, and then what it was."""
        self._read += 1
        frame = _FRAME.match(text)
        if frame is not None:
            self.frames.append(clean(f"{frame[1]}:{frame[2]}" + (f" in {frame[3].strip()}" if frame[3] else "")))
            del self.frames[:-_MOST_FRAMES]
            return False, None
        if not text.strip() or text[0] in " \t|+" or text.lstrip().startswith(("^", "~", "[Previous line")):
            return self._read > _LONGEST_TRACEBACK, None
        raised = _RAISED.match(text.strip())
        if raised is None or not self.frames or " " in raised[1]:
            return True, None
        return True, self.fact(raised[1].split(".")[-1], (raised[2] or "").strip())

    def fact(self, type: str, message: str) -> Fact:
        fields = {"type": clean(type), "message": clean(message, limit=_LONGEST), "frames": list(self.frames)}
        return Fact("exception", self.line, fields, self.rank)


def _said(text: str, line: int, rank: int | None) -> Iterator[Fact]:
    shown = clean(text.strip(), limit=_LONGEST)
    for pattern, made in (*_SPEAKING, *_ASIDE):
        found = pattern.search(text)
        if found is not None:
            fact = made(found, shown)
            if fact is not None:
                yield Fact(fact.kind, line, _safe(fact.fields), rank)
            return


def _besides(fact: Fact) -> Iterator[Fact]:
    """What an exception says about the device, the ranks or the user."""
    text = f"{fact.fields['type']}: {fact.fields['message']}"
    for other in _said(text, fact.line, fact.rank):
        if other.kind in ("device", "collective", "ended"):
            yield other


def _safe(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: clean(value, limit=_LONGEST) if isinstance(value, str) else value for key, value in fields.items()}


def _rank(text: str) -> int | None:
    found = _RANK.search(text[:200])
    return int(next(group for group in found.groups() if group)) if found else None
