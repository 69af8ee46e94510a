"""What compute-sanitizer found, as findings with bricks.

Enters: ``sanitizer`` events, and the kernel bricks of the run with the blocks that launched them. Leaves: accesses out
of bounds for C-BUFSIZE-001, hazards and barriers for C-KERNELRACE-001, reads of memory that nobody wrote for
C-GPUINIT-001. Where the sanitizer did not run, nothing is judged; where it ran to its end in every process that it was
asked to look at, doubted nothing of itself and saw nothing, that is evidence for what its tool looks at and for nothing
else. Calls that fail and memory that is not given back are no accesses: they are counted, and not judged here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from brickprof.bricks import Brick, Kind
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event, Record, Span
from brickprof.rules import outcomes, wording
from brickprof.rules.names import whole
from brickprof.rules.story import Story

_QUESTION = "What did the sanitizer see?"
_ENDS = frozenset({"crashed", "exited", "crashed-by-signal", "nonfinite", "diverged", "out-of-bounds", "fault"})
_MOST_SPANS = 100_000
_MOST_FINDINGS = 8
_ARGUMENTS = re.compile(r"[(<].*$")
_UNNAMED = re.compile(r"(?:\(anonymous namespace\)|<unnamed>)::")


class _Kind(NamedTuple):
    cause: str
    says: str
    action: str
    without_name: str = "a kernel"


_OUTSIDE = _Kind(
    "out-of-bounds", "reaches outside its buffers", "Compare its grid and its masks with the buffers' sizes."
)
_CROOKED = _Kind(
    "out-of-bounds", "uses a misaligned address", "Compare its strides and offsets with the element's size."
)
_RACE = _Kind(
    "kernel-race", "has threads that race in shared memory",
    "Put a barrier between the write and the access that it meets.",
)  # fmt: skip
_ABSENT = _Kind(
    "kernel-race",
    "reaches into the shared memory of a block that may not be there",
    "Let the cluster meet (cluster.sync()) before the first remote access, and after the last.",
)
_BARRIER = _Kind(
    "kernel-race",
    "has a barrier that not all threads reach",
    "Move the barrier out of the branch that some threads skip.",
)
_UNWRITTEN = _Kind(
    "uninitialised-read", "reads memory that nobody wrote",
    "Fill the buffer (zeros instead of empty), or write all of it before it is read.",
)  # fmt: skip

_COPIED = _Kind(
    "uninitialised-read", "is copied though a part of it was never written",
    "Fill the buffer, or copy only what was written; padding that nobody reads is harmless.",
    "device memory",
)  # fmt: skip
_SEVERITIES = {"error": Severity.ERROR, "warning": Severity.WARNING, "info": Severity.INFO}
_NO_ACCESS = ("api", "leak")


class _Sanitized:
    contract = ""
    hears = (Span,)
    tools: tuple[str, ...] = ()
    kinds: dict[str, _Kind] = {}  # noqa: RUF012 - read only, by error
    looked = ""

    def __init__(self) -> None:
        self._kernels: dict[str, tuple[Brick, int, int]] = {}
        self._blocks: dict[tuple[int, int], Brick] = {}

    def feed(self, record: Record) -> None:
        if not isinstance(record, Span):
            return
        if record.brick.kind is Kind.KERNEL:
            self._kernels.setdefault(plain(record.brick.path), (record.brick, record.rank, record.parent))
        elif len(self._blocks) < _MOST_SPANS:
            self._blocks[record.rank, record.id] = record.brick

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        events = [event for event in story.events("sanitizer", -1) if event.fields.get("tool") in self.tools]
        wrong = [event for event in events if event.fields.get("what") == "error" and self._kind(event) is not None]
        if wrong:
            found = [self._violation(story, event, contract) for event in wrong[:_MOST_FINDINGS]]
            return outcomes.broken(contract, found, "nothing reported")
        if not events and not story.trained:
            return outcomes.vacuous(contract, "nothing was trained")
        if not events:
            names = " or ".join(self.tools)
            return outcomes.aside(contract, f"the sanitizer did not run; brickprof run --sanitizer {names}")
        if doubt := _doubt(events):
            return outcomes.unjudged(contract, doubt)
        beside = sum(_beside(event) for event in events)
        counted = f"; {wording.count(beside, 'failing call or leak', 'failing calls or leaks')}" if beside else ""
        return outcomes.held(contract, f"{events[0].fields['tool']}: {self.looked}{counted}", "nothing reported")

    def _kind(self, event: Event) -> _Kind | None:
        return self.kinds.get(str(event.fields.get("error", "")))

    def _violation(self, story: Story, event: Event, contract: Contract) -> Violation:
        kind = self._kind(event) or _OUTSIDE
        kernel = plain(str(event.fields.get("kernel", "")))
        brick, rank, block = self._brick(story, kernel)
        rank = whole(event.fields.get("rank"), rank)
        where = f" (launched by {block})" if block else ""
        symptom = f"{brick or kind.without_name}{where} {kind.says}"
        grade = "warning" if kind is _COPIED else str(event.fields.get("level", "error"))
        return Violation(
            contract.id, "sanitizer", _SEVERITIES.get(grade, Severity.ERROR), symptom, event.step, event.step,
            brick or block, "kernel", rank, (event.id,), cause=kind.cause, certainty=0.75 if grade != "error" else 0.95,
            static=True, explains=_ENDS, whys=(Because(_QUESTION, _told(event), brick, (event.id,)),),
            details={"question": _QUESTION, "asked": _QUESTION, "block": block}, action=kind.action,
        )  # fmt: skip

    def _brick(self, story: Story, kernel: str) -> tuple[str, int, str]:
        """The kernel's brick, its rank, and the block whose span it was launched in; its own name where it is none."""
        known = self._kernels.get(kernel)
        if known is None:
            return kernel, 0, ""
        brick, rank, parent = known
        block = self._blocks.get((rank, parent))
        named = story.names.show(block) if block is not None and block.kind is Kind.BLOCK else ""
        return brick.path, rank, named


class Access(_Sanitized):
    contract = "C-BUFSIZE-001"
    tools = ("memcheck",)
    kinds = {"invalid": _OUTSIDE, "misaligned": _CROOKED}  # noqa: RUF012
    looked = "every access was inside its buffer"


class Races(_Sanitized):
    contract = "C-KERNELRACE-001"
    tools = ("racecheck", "synccheck")
    kinds = {"race": _RACE, "absent": _ABSENT, "barrier": _BARRIER}  # noqa: RUF012
    looked = "no complaint about the order of threads"


class Unwritten(_Sanitized):
    contract = "C-GPUINIT-001"
    tools = ("initcheck",)
    kinds = {"uninitialised": _UNWRITTEN, "unwritten-copy": _COPIED}  # noqa: RUF012
    looked = "no read of memory that nobody wrote"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        judged = super().judge(story, contract)
        # What the moments hold is another question, and it is not answered by this.
        if judged.violations or judged.aside:
            return judged
        return outcomes.unjudged(contract, judged.why or judged.observed)


SANITIZED = "under compute-sanitizer memory is taken piece by piece, and the tool takes its own beside it"


def sanitized(story: Story) -> bool:
    """Whether the run was made under one of its tools."""
    return bool(story.events("sanitizer", -1))


def in_a_line(events: list[Event], tool: str) -> str:
    """What a run under ``tool`` shows, to stand behind its name; "" where findings tell it."""
    rule = next((each for each in RULES if tool in each.tools), None)
    told = [event for event in events if event.fields.get("tool") == tool]
    if rule is None or any(event.fields.get("error") in rule.kinds for event in told):
        return ""
    if doubt := _doubt(told):
        return f" cannot tell: {doubt}"
    return f": {rule.looked}"


def _doubt(events: list[Event]) -> str:
    """Why the silence of a sanitizer proves nothing; "" where it does."""
    said = [event.fields for event in events if event.fields.get("what") == "summary"]
    doubts = [text for fields in said for text in _texts(fields.get("doubts"))]
    if doubts:
        return f"the sanitizer says of itself: {doubts[0]}"
    started = sum(event.fields.get("what") == "start" for event in events)
    if not said or len([fields for fields in said if "errors" in fields]) < max(started, 1):
        return "the sanitizer did not come to its end"
    known = sum(_beside(event) for event in events)
    if sum(whole(fields["errors"]) for fields in said if "errors" in fields) <= known:
        return ""
    other = next((str(event.fields.get("text", "")) for event in events if event.fields.get("error") == "other"), "")
    return f"the sanitizer reports what is not known here{other and f': {other}'}"


def _beside(event: Event) -> int:
    """Reports of a summary that are no accesses."""
    told = event.fields.get("by_error")
    return sum(whole(told.get(name)) for name in _NO_ACCESS) if isinstance(told, dict) else 0


def _texts(told: object) -> list[str]:
    return [str(each) for each in told] if isinstance(told, list) else []


def plain(kernel: str) -> str:
    """A kernel's name without its return type, its template and its arguments."""
    name = _ARGUMENTS.sub("", _UNNAMED.sub("", kernel.removeprefix("void ").strip()))
    return name.rpartition("::")[2].strip()


def _told(event: Event) -> str:
    fields = event.fields
    text = f"{fields.get('text', '')}".rstrip(".: ")
    where = f" at {fields['kernel']}+{fields.get('offset', '?')}" if fields.get("kernel") else ""
    file = f" ({fields['file']})" if fields.get("file") else ""
    thread = f", by thread {fields['thread']} in block {fields.get('block', '?')}" if fields.get("thread") else ""
    if fields.get("error") == "race":
        where, file, thread = "", "", ""
    inside = f", in {fields['inside']}" if fields.get("inside") else ""
    by = f": {fields['by']} at {fields.get('at', '?')}" if fields.get("by") else ""
    state = f"; the address is {fields['state']}" if fields.get("state") else ""
    near = f", and is {fields['near']}" if fields.get("near") else ""
    hazards = f"; {wording.count(whole(fields['hazards']), 'hazard')}" if fields.get("hazards") else ""
    return f"{text}{by}{where}{file}{inside}{thread}{state}{near}{hazards}."


RULES = (Access, Races, Unwritten)
