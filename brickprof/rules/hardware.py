"""What a card reports of its own failure: Xid errors, memory errors, a card that is gone.

Enters: ``card`` events. Leaves: C-HARDWARE-001, for what the hardware did; and for C-BUFSIZE-001 the Xids by which a
card says that a kernel reached for an address that is not its own, where no exception has said so already. An Xid that
only tells that a process was ended is no error.
"""

from __future__ import annotations

from typing import NamedTuple

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import again, bounds, cards, outcomes, wording
from brickprof.rules.cards import Card
from brickprof.rules.device import has_device
from brickprof.rules.failures import failure
from brickprof.rules.names import whole
from brickprof.rules.story import Story

_QUESTION = "What did the card report?"
_ENDS = frozenset({
    "crashed", "exited", "crashed-by-signal", "killed", "hung", "nonfinite", "diverged", "spike", "collective",
})  # fmt: skip


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
        found = cards.cards(story)
        if not found:
            if not story.trained:
                return outcomes.vacuous(contract, "nothing was trained")
            absent = "no card was sampled; `brickprof doctor` says what can be read here"
            return outcomes.unjudged(contract, absent if has_device(story) else "no GPU: nothing ran on a card")
        wrong = [violation for card in found for violation in _failures(card, contract)]
        threshold = "no Xid of the hardware, no uncorrected memory error"
        if wrong:
            return outcomes.broken(contract, wrong, threshold)
        counted = any(card.fact("ecc_uncorrected") is not None for card in found)
        said = "no Xid" + (", no new uncorrected memory error" if counted else "; memory errors are not counted here")
        return outcomes.held(contract, said, threshold)


class Faults:
    """A wrong address that only the card has told of: no exception reached the script's own process."""

    contract = "C-BUFSIZE-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        told = [(card, event) for card in cards.cards(story) for event in card.others.get("xid", [])]
        faults = [(card, event) for card, event in told if whole(event.fields.get("xid")) in (13, 31)]
        if not faults or _raised(story):
            return outcomes.unjudged(contract, "no card reported a wrong address")
        return outcomes.broken(contract, [_fault(story, *faults[0], contract)], "every access inside its buffer")


def _fault(story: Story, card: Card, event: Event, contract: Contract) -> Violation:
    rank = min(story.ranks, default=0)
    symptom = f"{card.name} reported {_said(event)}"
    return Violation(
        contract.id, "out-of-bounds", Severity.ERROR, symptom, event.step, event.step, "", "kernel", rank, (event.id,),
        cause="out-of-bounds", certainty=0.8, explains=_ENDS,
        whys=(Because(_QUESTION, wording.sentence(symptom), "", (event.id,)),),
        details={"question": "Why did the run end?", "asked": _QUESTION},
        action="Find the access: brickprof run --sanitizer memcheck SCRIPT", experiment=again.in_order(story, rank),
    )  # fmt: skip


def _raised(story: Story) -> bool:
    raised = (failure(event) for rank in (*story.ranks, -1) for event in story.events("exception", rank))
    return any(bounds.outside(each.type, each.message) for each in raised)


def _failures(card: Card, contract: Contract) -> list[Violation]:
    found = [_reported(card, event, contract) for event in card.others.get("xid", []) if _of_hardware(event)]
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
