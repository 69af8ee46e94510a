"""C-SENTINEL-001: a loss is computed, never a value that stands for an error.

Enters: the story. Leaves: a loss without a graph; a loss that is the same to the last bit while batches differ and no
gradient comes of it; exact zeros among losses that are far from zero.

Exact zeros are healthy where a margin is met (hinge, triplet): then losses come near zero before they reach it. A loss
that repeats is healthy where the same batch repeats and the weights rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import curves, outcomes, wording
from brickprof.rules.names import number
from brickprof.rules.story import Story, Track

CONTRACT = "C-SENTINEL-001"
_FOLLOWS = frozenset({"not-learning", "plateau", "no-gradient", "vanishing"})
_ACTION = "Let the exception pass, or skip the step and count it; a constant in place of a loss trains nothing."


class Sentinel(NamedTuple):
    cause: str
    symptom: str
    finding: str
    places: list[int]
    certainty: float


class Sentinels:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        tracks = [story.track("loss", "value", rank) for rank in story.ranks]
        violations = [violation for track in tracks for violation in _violations(story, track, contract)]
        if violations:
            return outcomes.broken(contract, violations[:1])
        most = max((len(track) for track in tracks), default=0)
        if most < contract.threshold("repeats"):
            return outcomes.unjudged(contract, f"{wording.count(most, 'loss', 'losses')} say too little")
        return outcomes.held(contract, f"{wording.count(most, 'loss', 'losses')}, none of them a constant")


def _violations(story: Story, losses: Track, contract: Contract) -> list[Violation]:
    rank = losses.rank
    graphless = _graphless(story.events("loss", rank), contract)
    if graphless is not None:
        return [graphless]
    if curves.curve(story, rank).several:
        return []
    plain = losses.per_step().finite()
    found = _held_value(story, plain, contract) or _zeros_between(story, plain, contract)
    return [_told(found, plain)] if found is not None else []


def _graphless(events: list[Event], contract: Contract) -> Violation | None:
    """Losses on which backward was called although nothing led to them."""
    bare = [event for event in events if event.fields.get("grad_fn") == "NoneType"]
    told = [event for event in events if event.fields.get("grad_fn")]
    if len(bare) < contract.threshold("graphless"):
        return None
    always = len(bare) == len(told)
    values = {number(event.fields.get("value")) for event in bare}
    constant = len(values) == 1 and None not in values
    value = f", with the value {min(v for v in values if v is not None):g}" if constant else ""
    symptom = f"backward ran {len(bare):,} times on a loss without a graph{value}, first in step {bare[0].step:,}"
    proof = tuple(event.id for event in bare[:4])
    said = (
        "Every loss is cut off like this: no parameter can get a gradient from it." if always
        else f"The other {len(told) - len(bare):,} losses that were looked at were computed: a fallback took over."
    )  # fmt: skip
    asked = {"question": "Is this a loss at all?", "asked": "Where do the gradients end?"}
    return Violation(
        CONTRACT, "constant-loss", Severity.ERROR, symptom, bare[0].step,
        bare[int(contract.threshold("graphless")) - 1].step, "loss", "step", bare[0].rank, proof, asked,
        _stands_for(always, constant), 0.93, _FOLLOWS,
        (Because("What stands in for the loss?", said, "loss", proof),), (),
        "Call backward on the tensor that the model computed: no .item(), .detach() or new tensor in between."
        if always and not constant else _ACTION, static=always,
    )  # fmt: skip


def _stands_for(always: bool, constant: bool) -> str:
    if constant:
        return "sentinel-loss"
    return "no-gradient-path" if always else "silent-fallback"


def _held_value(story: Story, losses: Track, contract: Contract) -> Sentinel | None:
    """The longest row of equal losses, where it is too long and too sudden to be the work of the training."""
    row = _longest_row(losses.values)
    if len(row) < contract.threshold("repeats"):
        return None
    value, first = float(losses.values[row[0]]), int(losses.steps[row[0]])
    sudden = row[0] > 0 and _sudden(losses.values, row[0], value)
    if not _no_gradient(story, losses, row, unknown=sudden) or not _batches_differ(story, losses, row):
        return None
    if row[0] > 0 and not sudden:
        return None
    moved = _still_updated(story, losses, row)
    text = f"loss is exactly {value:g} in {len(row):,} steps, from step {first:,} on"
    said = f"The batches differ, and no gradient came of it{'; updates went on' if moved else ''}."
    return Sentinel("sentinel-loss", text, said, row, 0.9 if row[0] > 0 else 0.75)


def _zeros_between(story: Story, losses: Track, contract: Contract) -> Sentinel | None:
    """Zeros here and there, and nothing near zero beside them: two kinds of step, not one distribution."""
    zeros = np.flatnonzero(losses.values == 0.0)
    rest = np.abs(losses.values[losses.values != 0.0])
    if len(zeros) < contract.threshold("zeros") or len(rest) < 5 * contract.threshold("zeros"):
        return None
    if float(rest.min()) < 0.1 * float(np.median(rest)) or bool(np.any(losses.values < 0)):
        return None
    places = [int(place) for place in zeros]
    if not _no_gradient(story, losses, places):
        return None
    text = f"loss is exactly 0 in {len(places):,} steps, first in step {int(losses.steps[places[0]]):,}"
    said = f"All other losses are at least {rest.min():.4g}: a zero is not their neighbour, it stands for something."
    return Sentinel("sentinel-loss", text, said, places, 0.85)


def _longest_row(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[int]:
    if not len(values):
        return []
    edges = np.flatnonzero(np.diff(values) != 0) + 1
    starts = np.concatenate([[0], edges])
    ends = np.concatenate([edges, [len(values)]])
    longest = int(np.argmax(ends - starts))
    return list(range(int(starts[longest]), int(ends[longest])))


def _sudden(values: np.ndarray[tuple[int], np.dtype[np.float64]], place: int, value: float) -> bool:
    """Whether the losses just before were far from ``value``, and no step had it earlier."""
    before = values[max(0, place - 10) : place]
    usual = float(np.median(np.abs(values[:5])))
    return bool(np.all(before != value)) and float(np.median(np.abs(before - value))) > 0.2 * usual


def _no_gradient(story: Story, losses: Track, places: list[int], unknown: bool = False) -> bool:
    """Whether every gradient norm that was measured in these steps is zero; ``unknown`` where none was."""
    norms = story.norms(losses.rank)
    seen = [norm for place in places if (norm := norms.at(int(losses.steps[place]))) is not None]
    return all(norm == 0.0 for norm in seen) if seen else unknown


def _batches_differ(story: Story, losses: Track, places: list[int]) -> bool:
    """False only where the batches were seen to be the same."""
    inside = {int(losses.steps[place]) for place in places}
    prints = {e.fields.get("fingerprint") for e in story.events("batch", losses.rank) if e.step in inside}
    return len(prints - {"", None}) != 1


def _still_updated(story: Story, losses: Track, places: list[int]) -> bool:
    first = int(losses.steps[places[0]])
    return any(event.step > first for event in story.events("optimizer", losses.rank))


def _told(found: Sentinel, losses: Track) -> Violation:
    proof = losses.evidences([found.places[0], found.places[len(found.places) // 2], found.places[-1]])
    first = int(losses.steps[found.places[0]])
    detected = int(losses.steps[found.places[min(len(found.places), 16) - 1]])
    asked = {"question": "Is this a loss at all?", "asked": "Where do the gradients end?"}
    return Violation(
        CONTRACT, "constant-loss", Severity.ERROR, found.symptom, first, detected, "loss", "step", losses.rank, proof,
        asked, found.cause, found.certainty, _FOLLOWS,
        (Because("Could training have brought this about?", found.finding, "loss", proof),), (), _ACTION,
        "Print the exception in the except block around the loss, or remove the block for one run.",
        static=found.places[0] == 0,
    )  # fmt: skip


RULE = Sentinels
