"""A card that has too little to do.

Enters: what the supervisor saw of the cards (``card`` events), joined to the steps by time; waits for data, host reads
and transfers of the same steps. Leaves: C-UTILISATION-001 (the utilisation that C-GPUTRAIN-002 asks for), with its
cause where the steps show one. A run of seconds, a tiny model, start-up and pauses prove nothing about a card; nor does
an idle card without a cause. A device that waits for launches is told by ``launch_bound``.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from brickprof.bricks import Kind
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event, Record, Span
from brickprof.rules import cards, outcomes
from brickprof.rules.cards import Card, Looks
from brickprof.rules.launch_bound import held_up, parameters
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story
from brickprof.rules.tempo import waits

_IDLE = "Why is the card idle?"
_MOST_STEPS = 4096


class _Reason(NamedTuple):
    """What the steps show of the time in which a card had nothing to do."""

    cause: str
    certainty: float
    granularity: str
    finding: str
    action: str
    evidence: tuple[str, ...]


class Utilisation:
    contract = "C-UTILISATION-001"
    hears = (Span,)

    def __init__(self) -> None:
        self._transfers: dict[int, Counter[int]] = {}
        self._steps: dict[int, dict[int, int]] = {}

    def feed(self, record: Record) -> None:
        """Times of transfers and of steps, where they were taken."""
        if not isinstance(record, Span):
            return
        if record.phase == "step":
            steps = self._steps.setdefault(record.rank, {})
            if len(steps) < _MOST_STEPS:
                steps[record.step] = record.host_ns
        elif record.brick.kind is Kind.TRANSFER and not record.attributes.get("within"):
            spent = self._transfers.setdefault(record.rank, Counter())
            if len(spent) < _MOST_STEPS or record.step in spent:
                spent[record.step] += record.device_ns if record.device_ns is not None else record.host_ns

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        found, window = cards.sampled(story, contract), cards.training(story)
        if isinstance(found, ContractResult):
            return found
        rated = [(card, looks) for card in found if (looks := _rated(card, window))]
        rated = [(card, looks) for card, looks in rated if cards.count(looks) >= contract.threshold("looks")]
        if not rated:
            return outcomes.unjudged(contract, "the training was too short for a utilisation to mean much")
        card, looks = min(rated, key=lambda pair: _used(pair[1]))
        used, bound = _used(looks), contract.threshold("utilisation")
        told, threshold = f"{card.name}: {used:.0%} of the time in use", f"at least {bound:.0%}"
        if used >= bound or _share_below(looks, bound) < contract.threshold("share"):
            return outcomes.held(contract, told, threshold)
        if parameters(story) < contract.threshold("small_model"):
            return outcomes.unjudged(contract, f"{told}; so small a model cannot keep it busy", told)
        reason = next((why for rank in story.ranks if (why := self._reason(story, rank, used, contract))), None)
        if reason is None and held_up(story, contract):
            return outcomes.unjudged(contract, f"{told}; the device waits for launches", told)
        return outcomes.broken(contract, [self._idle(card, looks, used, reason, contract)], threshold)

    def _idle(
        self, card: Card, looks: list[Looks], used: float, reason: _Reason | None, contract: Contract
    ) -> Violation:
        symptom = f"{card.name} is in use {used:.0%} of the time"
        first, last = looks[0].event, looks[-1].event
        shown = (first.id, last.id)
        if reason is None:
            return Violation(
                contract.id, "low-utilisation", Severity.INFO, symptom, first.step, last.step, "", "step", 0, shown,
                experiment="See what the host does meanwhile: brickprof run --level deep SCRIPT",
            )  # fmt: skip
        between = f"From step {first.step:,} to {last.step:,} the card computed {used:.0%} of the time."
        return Violation(
            contract.id, "low-utilisation", Severity.WARNING, symptom, first.step, last.step, "", reason.granularity, 0,
            (*shown, *reason.evidence), cause=reason.cause, certainty=reason.certainty, static=True,
            explains=frozenset({"slow", "loader-bound", "host-sync-in-loop", "extra-transfers"}),
            whys=(Because(_IDLE, f"{between} {reason.finding}", "", reason.evidence),),
            details={"question": _IDLE, "asked": _IDLE, "utilisation": used}, action=reason.action,
        )  # fmt: skip

    def _reason(self, story: Story, rank: int, used: float, contract: Contract) -> _Reason | None:
        least = max(contract.threshold("explained") * (1 - used), 0.1)
        return (
            _starved(story, rank, least)
            or _copying(self._transfers.get(rank), self._steps.get(rank), least)
            or _reading(story, rank, contract)
        )


def _rated(card: Card, window: tuple[int, int] | None) -> list[Looks]:
    looks = card.during(window) if window else []
    return [look for look in looks if look.value("utilisation") is not None]


def _used(looks: list[Looks]) -> float:
    return cards.mean(looks, "utilisation") or 0.0


def _share_below(looks: list[Looks], bound: float) -> float:
    """The share of looks that lie below a bound: pauses for a checkpoint alone are not enough."""
    return cards.count([look for look in looks if (look.value("utilisation") or 0.0) < bound]) / cards.count(looks)


def _starved(story: Story, rank: int, least: float) -> _Reason | None:
    for each in waits(story, rank):
        if len(each.waited) < cards.WARM_UP:
            continue
        share = float(each.waited.sum() / each.lasted.sum())
        if share >= least:
            usual = float(np.median(each.waited)) * 1e3
            text = f"The training waits for data {share:.0%} of the time ({usual:.3g} ms for a batch)."
            return _Reason("loader-bound", 0.9, "loader", text, _FEED, tuple(event.id for event in each.events[:3]))
    return None


def _copying(spent: Counter[int] | None, steps: dict[int, int] | None, least: float) -> _Reason | None:
    shares = [spent[step] / lasted for step, lasted in (steps or {}).items() if lasted and spent and step in spent]
    if len(shares) < 3 or (share := float(np.median(shares))) < least:
        return None
    text = f"Copies between host and device take {share:.0%} of a step."
    return _Reason("extra-transfers", 0.8, "transfer", text, _KEEP, ())


def _reading(story: Story, rank: int, contract: Contract) -> _Reason | None:
    looks = [event for event in story.events("syncs", rank) if number(event.fields.get("device")) is not None]
    reads = float(np.median([whole(event.fields["device"]) for event in looks])) if len(looks) >= 3 else 0.0
    if reads < contract.threshold("reads"):
        return None
    site = _most_read(looks)
    text = f"The host reads {reads:,.0f} numbers of the device in every step{site and f', most of them at {site}'}; "
    text += "each read waits until the device has nothing left to do."
    action = "Keep numbers on the device and read them together, every some steps: torch.stack(values).tolist()."
    return _Reason("host-sync-in-loop", 0.75, "host_sync", text, action, tuple(event.id for event in looks[:3]))


def _most_read(looks: list[Event]) -> str:
    counted: Counter[str] = Counter()
    for event in looks:
        sites = event.fields.get("sites")
        for pair in sites if isinstance(sites, list) else ():
            if isinstance(pair, list) and len(pair) >= 2:
                counted[str(pair[0])] += whole(pair[1])
    return counted.most_common(1)[0][0] if counted else ""


_FEED = (
    "Give the DataLoader workers (num_workers=4, persistent_workers=True, pin_memory=True), and do once, ahead of the "
    "training, what the dataset does for every sample."
)
_KEEP = "Copy a batch once, from pinned memory and with non_blocking=True, and keep on the device what is used there."


RULE = Utilisation
