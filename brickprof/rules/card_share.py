"""Processes that hold a card and do nothing with it.

Enters: the strangers that the supervisor saw on the run's cards. Leaves: C-CARDSHARE-001. Whoever computes there too is
somebody's neighbour; an orphan is a process whose parent is gone and that does nothing but hold memory.
"""

from __future__ import annotations

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import cards, outcomes, wording
from brickprof.rules.cards import Card
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story


class Alone:
    contract = "C-CARDSHARE-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        found = cards.sampled(story, contract)
        if isinstance(found, ContractResult):
            return found
        listed = [card for card in found if card.about and card.about.fields.get("known_by") == "listed"]
        if not listed:
            return outcomes.unjudged(contract, "who else holds memory on the card is not told here (a container?)")
        left = [one for card in listed for one in _strangers(card) if one.fields.get("orphan") is True]
        large = [one for one in left if (number(one.fields.get("memory")) or 0.0) >= contract.threshold("bytes")]
        threshold = "no orphaned process holds memory"
        if large:
            return outcomes.broken(contract, [_orphan(story, large, contract)], threshold)
        others = sum(len(_strangers(card)) for card in listed)
        return outcomes.held(contract, wording.count(others, "other process", "other processes"), threshold)


def _strangers(card: Card) -> list[Event]:
    """The others, each as it was last seen."""
    last = {whole(event.fields.get("pid")): event for event in card.others.get("process", [])}
    return list(last.values())


def _orphan(story: Story, large: list[Event], contract: Contract) -> Violation:
    held = sum(number(event.fields.get("memory")) or 0.0 for event in large)
    pids = ", ".join(str(event.fields.get("pid")) for event in large[:4])
    who = f"{wording.count(len(large), 'process', 'processes')} ({pids}) that nobody waits for"
    symptom = f"{who} {'holds' if len(large) == 1 else 'hold'} {wording.size(held)} of the card"
    filled = any(_memory_ran_out(event) for rank in (*story.ranks, -1) for event in story.events("exception", rank))
    first = large[0]
    text = f"Process {first.fields.get('pid')} ({first.fields.get('name', '')}) has lost its parent and does nothing; "
    text += "it was there before the run." if first.fields.get("before") else "it came while the run went on."
    return Violation(
        contract.id, "orphaned-process", Severity.ERROR if filled else Severity.WARNING, symptom, 0, first.step, "",
        "step", 0, tuple(event.id for event in large[:3]), cause="orphaned-process", certainty=0.9, static=True,
        explains=frozenset({"out-of-memory"}), whys=(Because("Whose is it?", text, "", (first.id,)),),
        details={"question": "What else is on the card?", "asked": "What else is on the card?"},
        action=f"See what they are (ps -o pid,ppid,etime,cmd {pids.replace(', ', ' ')}); end them if they are yours.",
    )  # fmt: skip


def _memory_ran_out(event: Event) -> bool:
    return "out of memory" in str(event.fields.get("message", "")).lower()


RULE = Alone
