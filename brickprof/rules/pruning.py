"""FALSIFY-ALBOR-008: a pruned model has the sparsity that was asked for.

Enters: the story: what each pruning left of each weight, and a sparsity that is declared. Leaves: one result. Pruning
may come in stages, each nearer to what was asked for: what counts is how the weights stand when the run is over.
"""

from __future__ import annotations

import re

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import declared, outcomes
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

CONTRACT = "FALSIFY-ALBOR-008"
_ASKED = re.compile(r"(^|[._-])(target_|final_)?(sparsity|prun\w*_(amount|ratio|fraction|rate))$", re.IGNORECASE)

_BY_ROWS = frozenset({"ln_structured", "random_structured", "custom_from_mask"})
_ROUNDED_ROWS = 0.05


class Pruned:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        rank = story.ranks[0] if story.ranks else 0
        events = [event for event in story.events("pruned", rank) if whole(event.fields.get("numel"))]
        asked = _asked(story)
        if not events:
            return outcomes.unjudged(contract, "no pruning was seen; of a pruned checkpoint it counts the zeros")
        if asked is None:
            return outcomes.unjudged(contract, "weights were pruned, and no sparsity is declared (--config FILE)")
        if not declared.over(story, rank):
            return outcomes.unjudged(contract, "the run is not over, and pruning may come in stages")
        key, target, source = asked
        share, rounding = _share(_latest(events))
        limit = f"{target:.1%} of the weights, as {key} says"
        if abs(share - target) <= contract.threshold("tolerance") + rounding:
            return outcomes.held(contract, f"{share:.1%} of the pruned weights are zero", limit)
        return outcomes.broken(contract, [_violation(events, share, target, key, source)], limit)


def _asked(story: Story) -> tuple[str, float, str] | None:
    """The one share that is declared under a name for it."""
    found = {
        (key, value, source) for key, (given, source) in story.declared.items()
        if _ASKED.search(key) and (value := number(given)) is not None and 0 < value < 1
    }  # fmt: skip
    return next(iter(found)) if len({value for _, value, _ in found}) == 1 else None


def _latest(events: list[Event]) -> list[Event]:
    """Of each weight, what its last pruning left of it."""
    known = {event.fields.get("tensor") if event.fields.get("tensor") is not None else event.id: event
             for event in events}  # fmt: skip
    return list(known.values())


def _share(latest: list[Event]) -> tuple[float, float]:
    """The share of zeros in what was pruned, and how far whole elements, or whole rows, may be from a share."""
    zeros, numel = (sum(whole(event.fields.get(name)) for event in latest) for name in ("zeros", "numel"))
    rows = any(event.fields.get("how") in _BY_ROWS for event in latest)
    return zeros / numel, _ROUNDED_ROWS if rows else 0.5 * len(latest) / numel


def _violation(events: list[Event], share: float, target: float, key: str, source: str) -> Violation:
    last = events[-1]
    evidence = (source, events[0].id, last.id)
    symptom = f"{share:.1%} of the pruned weights are zero, {target:.1%} are asked for ({key})"
    return Violation(
        CONTRACT, "config", Severity.ERROR, symptom, events[0].step, last.step, "", "block", last.rank, evidence,
        {"question": "Does the model have the sparsity that was asked for?", "asked": "How was it pruned?"},
        cause="config-unused", certainty=0.9, explains=frozenset({"plateau"}), static=True,
        whys=(Because("Why are there so many zeros?" if share > target else "Why are there so few zeros?",
                      f"{last.fields.get('how')} was not given {key}: it left {share:.1%} of zeros.", "", evidence),),
        action=f"Hand {key} to the pruning call.",
        experiment="Print what the pruning is called with.",
    )  # fmt: skip


RULE = Pruned
