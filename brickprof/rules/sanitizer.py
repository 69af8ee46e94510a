"""What compute-sanitizer found, as findings with bricks.

Enters: ``sanitizer`` events, and the kernel bricks of the run with the blocks that launched them. Leaves: accesses out
of bounds for C-BUFSIZE-001, hazards and barriers for C-KERNELRACE-001, reads of memory that nobody wrote for
C-GPUINIT-001. Where the sanitizer did not run, nothing is judged; where it ran to its end and saw nothing, that is
evidence for what its tool looks at and for nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from brickprof.bricks import Brick, Kind
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event, Record, Span
from brickprof.rules import outcomes, wording
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

_QUESTION = "What did the sanitizer see?"
_ENDS = frozenset({"crashed", "exited", "crashed-by-signal", "nonfinite", "diverged", "out-of-bounds", "fault"})
_MOST_SPANS = 100_000
_MOST_FINDINGS = 8
_ARGUMENTS = re.compile(r"[(<].*$")


@dataclass(frozen=True, slots=True)
class _Kind:
    cause: str
    says: str
    action: str


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
_BARRIER = _Kind(
    "kernel-race",
    "has a barrier that not all threads reach",
    "Move the barrier out of the branch that some threads skip.",
)
_UNWRITTEN = _Kind(
    "uninitialised-read", "reads memory that nobody wrote",
    "Fill the buffer (zeros instead of empty), or write all of it before it is read.",
)  # fmt: skip


class _Sanitized:
    contract = ""
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
            return outcomes.unjudged(contract, f"the sanitizer did not run; brickprof run --sanitizer {names}")
        ended = [event for event in events if event.fields.get("what") == "summary" and "errors" in event.fields]
        if not ended or any(number(event.fields["errors"]) for event in ended):
            return outcomes.unjudged(contract, "the sanitizer did not come to its end, or said what is not known here")
        return outcomes.held(contract, f"{ended[0].fields['tool']}: {self.looked}", "nothing reported")

    def _kind(self, event: Event) -> _Kind | None:
        return self.kinds.get(str(event.fields.get("error", "")))

    def _violation(self, story: Story, event: Event, contract: Contract) -> Violation:
        kind = self._kind(event) or _OUTSIDE
        kernel = plain(str(event.fields.get("kernel", "")))
        brick, rank, block = self._brick(story, kernel)
        where = f" (launched by {block})" if block else ""
        symptom = f"{brick or 'a kernel'}{where} {kind.says}"
        mild = event.fields.get("level") in ("warning", "info")
        return Violation(
            contract.id, "sanitizer", Severity.WARNING if mild else Severity.ERROR, symptom, event.step, event.step,
            brick or block, "kernel", rank, (event.id,), cause=kind.cause, certainty=0.75 if mild else 0.95,
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
    kinds = {"race": _RACE, "barrier": _BARRIER}  # noqa: RUF012
    looked = "no complaint about the order of threads"


class Unwritten(_Sanitized):
    contract = "C-GPUINIT-001"
    tools = ("initcheck",)
    kinds = {"uninitialised": _UNWRITTEN}  # noqa: RUF012
    looked = "no read of memory that nobody wrote"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        judged = super().judge(story, contract)
        # What the moments hold is another question, and it is not answered by this.
        return judged if judged.violations else outcomes.unjudged(contract, judged.why or judged.observed)


def plain(kernel: str) -> str:
    """A kernel's name without its return type, its template and its arguments."""
    name = _ARGUMENTS.sub("", kernel.removeprefix("void ").strip())
    return name.rpartition("::")[2].strip()


def _told(event: Event) -> str:
    fields = event.fields
    text = f"{fields.get('text', '')}".rstrip(".: ")
    where = f" at {fields['kernel']}+{fields.get('offset', '?')}" if fields.get("kernel") else ""
    file = f" ({fields['file']})" if fields.get("file") else ""
    thread = f", by thread {fields['thread']} in block {fields.get('block', '?')}" if fields.get("thread") else ""
    if fields.get("error") == "race":
        where, file, thread = "", "", ""
    state = f"; the address is {fields['state']}" if fields.get("state") else ""
    near = f", and is {fields['near']}" if fields.get("near") else ""
    hazards = f"; {wording.count(whole(fields['hazards']), 'hazard')}" if fields.get("hazards") else ""
    return f"{text}{where}{file}{thread}{state}{near}{hazards}."


RULES = (Access, Races, Unwritten)
