"""What a card reports of its own failure: Xid errors, memory errors, a card that is gone.

Enters: ``card`` events, and how the run ended. Leaves: C-HARDWARE-001, for what the hardware did; and for C-BUFSIZE-001
the Xids by which a card says that a kernel reached for an address that is not its own, where no exception has said so
already. An Xid that only tells that a process was ended is no error. Of whose program a card speaks it does not say:
only cards of the run count, and a wrong address only where the run was alone on its card or ended as one that made it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import again, bounds, cards, outcomes, wording
from brickprof.rules.cards import Card
from brickprof.rules.device import has_device
from brickprof.rules.failures import Failure, failure
from brickprof.rules.names import whole
from brickprof.rules.story import Story

_QUESTION = "What did the card report?"
_ENDS = frozenset({
    "crashed", "exited", "crashed-by-signal", "killed", "hung", "nonfinite", "diverged", "spike", "collective",
})  # fmt: skip
_OF_A_DEVICE = re.compile(
    r"(CUDA|HIP)( kernel| driver| runtime| unknown)? error|CU(DNN|BLAS|BLASLT|SOLVER|SPARSE|FFT)_|cuDNN error|NCCL"
    r"|Triton Error|No CUDA GPUs are available"
)
_CHOSEN = frozenset({"ok", "usage", "interrupted", "terminated", "hung_up", "quit", "killed", "out_of_memory"})
"""Ends that no error of a device brings about."""
_FAULTS = ("SIGABRT", "SIGSEGV", "SIGBUS")
_ON_THEIR_WAY = 2
"""Steps that may still be told after a card has stopped computing for a process."""


class Xid(NamedTuple):
    text: str
    severity: Severity = Severity.ERROR
    hardware: bool = True
    """Whether the card is to blame; else it is what the program asked of it."""


XIDS = {
    13: Xid("a kernel raised an exception (an address out of range, an illegal instruction)", hardware=False),
    31: Xid("a kernel touched an address that is not mapped (MMU fault)", hardware=False),
    43: Xid("the card stopped working for the program after an error of its own", hardware=False),
    45: Xid("the work of a process was cleaned up, because it ended or an error came before", Severity.INFO, False),
    48: Xid("a double-bit memory error (ECC)"),
    63: Xid("a page of the card's memory was retired, or a row was marked for remapping", Severity.WARNING),
    64: Xid("a bad page or row of the card's memory could not be retired"),
    74: Xid("an NVLink error"),
    79: Xid("the card has fallen off the bus"),
    94: Xid("a memory error that was contained to one program (ECC)"),
    95: Xid("a memory error that was not contained (ECC)"),
    119: Xid("the card's system processor (GSP) no longer answers"),
}
_UNKNOWN = Xid("an error without a description here", Severity.WARNING)


class Hardware:
    contract = "C-HARDWARE-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        found = _of_the_run(story)
        if not found:
            if not story.trained:
                return outcomes.vacuous(contract, "nothing was trained")
            absent = "the run was seen on no card; `brickprof doctor` says what can be read here"
            return outcomes.unjudged(contract, absent if has_device(story) else "no GPU: nothing ran on a card")
        wrong = [violation for card in found for violation in _failures(story, card, contract)]
        threshold = "no Xid of the hardware, no uncorrected memory error"
        if wrong:
            return outcomes.broken(contract, wrong, threshold)
        counted = any(card.fact("ecc_uncorrected") is not None for card in found)
        memory = ", no new uncorrected memory error" if counted else "; memory errors are not counted here"
        return outcomes.held(contract, f"no Xid of the hardware{memory}", threshold)


class Faults:
    """A wrong address that only the card has told of: no exception reached the script's own process."""

    contract = "C-BUFSIZE-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        told = [(card, event) for card in _of_the_run(story) for event in card.others.get("xid", [])]
        faults = [(card, event) for card, event in told if whole(event.fields.get("xid")) in (13, 31)]
        if not faults or any(bounds.outside(each.type, each.message) for each in _raised(story)):
            return outcomes.aside(contract, "no card of the run reported a wrong address that no exception tells of")
        own = [(card, event) for card, event in faults if not _of_another(story, card, event)]
        if own:
            return outcomes.broken(contract, [_fault(story, *own[0], contract)], "every access inside its buffer")
        card, event = faults[0]
        why = f"{card.name} reported Xid {event.fields['xid']}, which may be another program's: "
        return outcomes.unjudged(contract, why + _of_another(story, card, event))


def _of_another(story: Story, card: Card, event: Event) -> str:
    """What speaks against the run having reached for the address; "" where nothing does."""
    if _ended_well(story):
        return "the run came to its end"
    if _went_on(story, event):
        return "training went on"
    if not card.alone and not _ended_by_device(story):
        return "the run was not known to be alone on the card, and has not ended by an error of a device"
    return ""


def _of_the_run(story: Story) -> list[Card]:
    """The cards that the run was seen to use; those that reported an error, where it was seen on none and ended by
    one. A card whose memory grew is the run's where it has tensors there, or ended by an error of a device: else that
    was somebody else's."""
    found = cards.cards(story)
    on_device = has_device(story) or any(_tells_of_device(each) for each in _raised(story))
    ended = on_device and _ended_by_device(story)
    if any(card.known_by for card in found):
        own = _devices(story)
        return [
            card for card in found
            if card.known_by == "listed" or (card.known_by and (ended or f"cuda:{card.ordinal}" in own))
        ]  # fmt: skip
    return found if ended else []


def _devices(story: Story) -> set[str]:
    return {str(event.fields.get("device")) for rank in story.ranks for event in story.events("tensor", rank)}


def _ended_well(story: Story) -> bool:
    ends = story.events("exited", -1)
    return bool(ends) and not _raised(story) and all(_is_clean(event) for event in ends)


def _ended_by_device(story: Story) -> bool:
    """Whether the run came to an end as an error of a card brings it about."""
    raised = _raised(story)
    if raised:
        return any(_tells_of_device(each) for each in raised)
    ends = [event.fields for event in story.events("exited", -1) if not _is_clean(event)]
    unasked = [end for end in ends if str(end.get("class")) not in _CHOSEN and not end.get("asked_to_stop")]
    return any(end.get("signal") or not _in_order(story) for end in unasked)


def _in_order(story: Story) -> bool:
    """Whether every rank wrote that it was over, as behind ``sys.exit(1)``."""
    return bool(story.ranks) and all(story.events("exit", rank) for rank in story.ranks)


def _is_clean(event: Event) -> bool:
    return whole(event.fields.get("code")) == 0 and not event.fields.get("signal")


def _went_on(story: Story, event: Event) -> bool:
    """Whether every rank trained on behind it: for a process whose kernel failed so, its card computes nothing more."""
    ends = [cards.step_ends(story, rank).values() for rank in story.ranks]
    behind = [sum(ended > event.time_ns for ended in times) for times in ends]
    return bool(behind) and min(behind) > _ON_THEIR_WAY


def _tells_of_device(raised: Failure) -> bool:
    if "out of memory" in raised.message.lower():
        return False
    told = raised.late or raised.type == "AcceleratorError" or raised.signal in _FAULTS
    return told or bool(_OF_A_DEVICE.search(raised.message))


def _raised(story: Story) -> list[Failure]:
    return [failure(event) for rank in (*story.ranks, -1) for event in story.events("exception", rank)]


def _fault(story: Story, card: Card, event: Event, contract: Contract) -> Violation:
    rank = min(story.ranks, default=0)
    symptom = f"{card.name} reported {_said(event)}"
    doubt = "" if card.alone else " Others may have been on the card, but the run ended by an error of a device."
    return Violation(
        contract.id, "out-of-bounds", Severity.ERROR, symptom, event.step, event.step, "", "kernel", rank, (event.id,),
        cause="out-of-bounds", certainty=0.8 if card.alone else 0.6, explains=_ENDS,
        whys=(Because(_QUESTION, f"{wording.sentence(symptom)}{doubt}", "", (event.id,)),),
        details={"question": "Why did the run end?", "asked": _QUESTION},
        action="Find the access: brickprof run --sanitizer memcheck SCRIPT", experiment=again.in_order(story, rank),
    )  # fmt: skip


def _failures(story: Story, card: Card, contract: Contract) -> list[Violation]:
    told = [event for event in card.others.get("xid", []) if _of_hardware(event)]
    if not card.alone and not _ended_by_device(story):  # what is not known here may be a program's, and not ours
        told = [event for event in told if whole(event.fields.get("xid")) in XIDS]
    found = [_reported(card, event, contract) for event in told]
    for event in card.others.get("lost", [])[:1]:
        found.append(_violation(contract, event, Severity.ERROR, f"{card.name} no longer answers", 0.9))
    for event in card.others.get("ecc", []):
        errors = whole(event.fields.get("uncorrected"))
        if errors:
            text = f"{card.name} had {wording.count(errors, 'memory error')} that could not be corrected"
            found.append(_violation(contract, event, Severity.ERROR, text, 0.9))
    kinds = {violation.symptom: violation for violation in reversed(found)}  # the first of its kind
    return sorted(kinds.values(), key=lambda violation: violation.first_step)


def _of_hardware(event: Event) -> bool:
    return XIDS.get(whole(event.fields.get("xid")), _UNKNOWN).hardware


def _said(event: Event) -> str:
    code = whole(event.fields.get("xid"))
    return f"Xid {code}: {XIDS.get(code, _UNKNOWN).text}"


def _reported(card: Card, event: Event, contract: Contract) -> Violation:
    severity = XIDS.get(whole(event.fields.get("xid")), _UNKNOWN).severity
    return _violation(contract, event, severity, f"{card.name} reported {_said(event)}", 0.9)


def _violation(contract: Contract, event: Event, severity: Severity, symptom: str, certainty: float) -> Violation:
    return Violation(
        contract.id, "hardware", severity, symptom, event.step, event.step, "", "step", 0, (event.id,),
        cause="hardware-error", certainty=certainty, explains=_ENDS,
        whys=(Because(_QUESTION, wording.sentence(symptom), "", (event.id,)),),
        details={"question": "Is the card sound?", "asked": _QUESTION},
        action="Do not trust what came after the last checkpoint; test the card (dcgmi diag -r 3), or use another one.",
    )  # fmt: skip


RULES = (Hardware, Faults)
