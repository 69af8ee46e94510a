"""Buffers that are too small, and places that are not there: what an exception proves.

Enters: exception events of every rank. Leaves: C-BUFSIZE-001. Kernels check their own sizes with ``brickprof check``;
on a run only what torch, the driver or a kernel of brickprof refused is known for certain.
"""

from __future__ import annotations

import re

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import again, outcomes, wording
from brickprof.rules.failures import Failure, failure
from brickprof.rules.story import Story

_OUTSIDE = re.compile(
    r"index out of range|out of bounds|is out of range|exceeds dimension size|illegal memory access|misaligned address"
    r"|device-side assert|index \S+ is out|list index out of range|invalid memory access",
    re.IGNORECASE,
)
_TOO_SMALL = re.compile(
    r"must match the existing size|must match the size of tensor|match the broadcast shape|is invalid for input of size"
    r"|storage of size|size mismatch|could not broadcast input array|shape mismatch|sizes? .* not match"
    r"|buffer (is )?(too small|smaller)",
    re.IGNORECASE,
)
_ALGEBRA = re.compile(r"mat1 and mat2|load.*state_dict|copying a param", re.IGNORECASE)
_ENDS = frozenset({"crashed", "exited", "crashed-by-signal"})
_NUMBER = re.compile(r"\d[\d,]*")
_REFUSED = re.compile(
    r"(?P<kernel>\S+): (?P<buffer>\w+) holds (?P<room>\d+) elements .*and the kernel reaches (?P<reach>\d+)"
)
"""How ``BufferTooSmall`` of ``brickprof.operators.launch`` says it."""


def outside(kind: str, message: str) -> bool:
    """Whether an exception says that a place outside a buffer was asked for."""
    return kind == "IndexError" or bool(_OUTSIDE.search(message))


def too_small(message: str) -> bool:
    """Whether an exception says that something was put where it does not fit."""
    return bool(_TOO_SMALL.search(message)) and not _ALGEBRA.search(message)


class Sizes:
    contract = "C-BUFSIZE-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        raised = [event for rank in (*story.ranks, -1) for event in story.events("exception", rank)]
        for event in sorted(raised, key=lambda event: event.time_ns):
            violation = _violation(event, story, contract)
            if violation is not None:
                return outcomes.broken(contract, [violation], "every access inside its buffer")
        if not story.trained:
            return outcomes.vacuous(contract, "nothing was trained")
        why = "no kernel's buffers were watched; --level deep on a GPU checks them, and nothing here overran"
        return outcomes.aside(contract, why)


def _violation(event: Event, story: Story, contract: Contract) -> Violation | None:
    raised = failure(event)
    kind, message = raised.type, raised.message
    refused = _REFUSED.match(message) if kind == "BufferTooSmall" else None
    if refused is not None:
        return _refusal(event, raised, refused, contract)
    if outside(kind, message):
        cause, action = "out-of-bounds", _INSIDE
    elif too_small(message) or kind == "BufferTooSmall":
        cause, action = "buffer-overflow", _ENOUGH
    else:
        return None
    brick = story.names.show(story.names.brick(event.rank, event.fields.get("brick")))
    place = raised.where
    first_line = message.strip().splitlines()[0] if message.strip() else kind
    symptom = f"{'a place outside a buffer was asked for' if cause == 'out-of-bounds' else 'sizes do not fit'}: "
    symptom += first_line
    numbers = _NUMBER.findall(first_line)
    finding = f"At {place}: {first_line}" if place else first_line
    if raised.late:
        finding = f"The device told at {place}: an access before this line was outside" if place else first_line
    question = f"Which sizes? ({', '.join(numbers[:4])})" if numbers else "What was asked for?"
    return Violation(
        contract.id, cause, Severity.ERROR, symptom, event.step, event.step, brick, "kernel", max(event.rank, 0),
        (event.id,), cause=cause, certainty=0.85 if cause == "out-of-bounds" else 0.7,
        explains=_ENDS,
        whys=(Because(question, wording.sentence(finding.rstrip(".")), brick, (event.id,)),),
        details={"question": "Why did the run end?", "asked": "What did the exception say?"}, action=action,
        experiment=again.in_order(story, event.rank) if raised.late else "",
    )  # fmt: skip


def _refusal(event: Event, raised: Failure, refused: re.Match[str], contract: Contract) -> Violation:
    """A kernel that measured its buffers and was not launched."""
    kernel, buffer, room, reach = refused["kernel"], refused["buffer"], int(refused["room"]), int(refused["reach"])
    sizes = f"{buffer} holds {wording.count(room, 'element')} and the kernel reaches {reach:,}"
    place = f"At {raised.where}" if raised.where else kernel
    finding = f"{place}: {sizes}; it was not launched"
    lacking = wording.count(reach - room, "more element")
    return Violation(
        contract.id, "buffer-overflow", Severity.ERROR, f"a buffer of {kernel} is too small: {sizes}", event.step,
        event.step, kernel, "kernel", max(event.rank, 0), (event.id,), cause="buffer-overflow", certainty=0.97,
        explains=_ENDS, whys=(Because(f"Which sizes? ({room:,}, {reach:,})", f"{finding}.", kernel, (event.id,)),),
        details={"question": "Why did the run end?", "asked": "What did the exception say?"},
        action=f"Give {buffer} {lacking}, or launch {kernel} with sizes that {buffer} has room for.",
    )  # fmt: skip


_INSIDE = (
    "Compare the largest index with the size of the table it looks into: vocabulary against embedding rows, sequence "
    "against max_seq_len, labels against classes; evaluation has to cut its inputs as training does."
)
_ENOUGH = "Size the buffer by the largest input it will ever hold, and check numel() before the copy."


RULE = Sizes
