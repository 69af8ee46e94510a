"""C-GA-001: gradients belong to one update, and are the mean over its micro-batches.

Enters: the story: backward passes per update, what the loss function gave against what backward began from, what was in
the gradients when a step began, and who cleared them. Leaves: one result. Broken: gradients of earlier steps are still
there (``missing-zero-grad``), the losses of N micro-batches are added and not averaged
(``accumulation-not-normalised``), or the gradients of all micro-batches but the last are thrown away.

Several backward passes in one update are accumulation only where the same line of code runs over several batches: two
losses of one batch, or the two halves of a GAN, are not.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Verdict, Violation
from brickprof.records import Event
from brickprof.rules import wording
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

CONTRACT = "C-GA-001"
_RUNAWAY = frozenset({"nonfinite", "exploding", "diverged", "spike", "not-learning", "plateau"})
_FOLLOWED = 8
"""Of a long accumulation, capture tells the first calls of the loss function only."""
_SCALING = ("Div", "Mul")


class Accumulation:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        threshold = "G = mean of the micro-batches' gradients, cleared between updates"
        if not story.trained:
            return ContractResult(CONTRACT, Verdict.VACUOUS, "", threshold, "no training was observed")
        rank = story.ranks[0]
        cycles = _cycles(story, rank)
        violation = (
            _not_cleared(story, rank, contract)
            or _thrown_away(story, rank, cycles, contract)
            or _not_averaged(story, rank, cycles, contract)
        )
        if violation is not None:
            said = violation.symptom
            return ContractResult(CONTRACT, Verdict.FAIL, said, threshold, said, (violation,))
        return _clean(story, rank, cycles, threshold)


@dataclass(slots=True)
class Cycle:
    """The backward passes of one update."""

    step: int
    losses: list[Event] = field(default_factory=list)
    criteria: list[Event] = field(default_factory=list)
    batches: int = 0

    @property
    def size(self) -> int:
        return len(self.losses)

    @property
    def one_line(self) -> bool:
        """Whether one line of code started all of them."""
        sites = {str(event.fields.get("site") or "") for event in self.losses}
        return len(sites) == 1 and sites != {""}

    @property
    def accumulates(self) -> bool:
        """Several backward passes of one line, each with a batch or a call of the loss function of its own."""
        own = sum(1 for _, given in self.pairs() if given)
        several = self.batches >= self.size or own >= min(self.size, _FOLLOWED)
        return self.size >= 2 and self.one_line and several

    def pairs(self) -> list[tuple[Event, list[Event]]]:
        """Each backward with the calls of the loss function that came after the backward before it."""
        found: list[tuple[Event, list[Event]]] = []
        before = (-1, -1)
        for loss in sorted(self.losses, key=lambda event: event.moment):
            found.append((loss, [given for given in self.criteria if before < given.moment < loss.moment]))
            before = loss.moment
        return found

    @property
    def share(self) -> float | None:
        """What backward began from, as a share of what the loss function gave."""
        shares = []
        for loss, given in self.pairs():
            value, total = number(loss.fields.get("value")), _total(given)
            if value is not None and total and math.isfinite(value / total):
                shares.append(value / total)
        return median(shares) if shares else None

    @property
    def evidence(self) -> tuple[str, ...]:
        return tuple(event.id for event in (*self.losses[:2], *self.criteria[:2]))


def _total(given: Sequence[Event]) -> float | None:
    values = [number(event.fields.get("value")) for event in given]
    return None if None in values else sum(value for value in values if value is not None)


def _cycles(story: Story, rank: int) -> list[Cycle]:
    """The steps whose backward passes were all told in full."""
    found: dict[int, Cycle] = {}
    for event in story.events("loss", rank):
        if event.fields.get("site") and not event.fields.get("closure"):
            found.setdefault(event.step, Cycle(event.step)).losses.append(event)
    for event in story.events("criterion", rank):
        if event.step in found and event.fields.get("grad") is not False:
            found[event.step].criteria.append(event)
    for event in story.events("batch", rank):
        if event.step in found:
            found[event.step].batches += 1
    updates = sorted(event.moment for event in story.events("optimizer", rank))
    whole_ones = [cycle for cycle in found.values() if _complete(cycle) and not _updated_within(cycle, updates)]
    return sorted(whole_ones, key=lambda cycle: cycle.step)


def _complete(cycle: Cycle) -> bool:
    micros = [whole(event.fields.get("micro")) for event in cycle.losses]
    return sorted(micros) == list(range(len(micros)))


def _updated_within(cycle: Cycle, updates: Sequence[tuple[int, int]]) -> bool:
    """Whether somebody made an update between two of the backward passes: then they belong to several."""
    first, last = (edge(event.moment for event in cycle.losses) for edge in (min, max))
    place = bisect_right(updates, first)
    return place < len(updates) and updates[place] < last


# -- gradients of earlier steps


def _not_cleared(story: Story, rank: int, contract: Contract) -> Violation | None:
    held = [event for event in story.events("held", rank) if whole(event.fields.get("tensors")) > 0]
    if not held:
        return _running_sum(story, rank, contract)
    for optimizer in dict.fromkeys(whole(event.fields.get("optimizer"), -1) for event in held):
        own = [event for event in held if whole(event.fields.get("optimizer"), -1) == optimizer]
        bad = [event for event in own if _holds(event)]
        if len(bad) >= contract.threshold("looks") and len(bad) >= 0.5 * len(own):
            return _stale(story, bad, rank)
    return None


def _holds(event: Event) -> bool:
    """Most gradients held something of an earlier step, and were cleared before none of this step's backwards."""
    return whole(event.fields.get("held")) >= 0.5 * whole(event.fields.get("tensors"))


def _stale(story: Story, bad: Sequence[Event], rank: int) -> Violation:
    first, last = bad[0], bad[-1]
    held, tensors = (whole(first.fields.get(name)) for name in ("held", "tensors"))
    text = (
        f"{held:,} of {wording.count(tensors, 'gradient')} still held those of earlier steps when the backward of step "
        f"{first.step:,} began"
    )
    brick = _part_of_model(story, rank, whole(first.fields.get("optimizer"), -1))
    return _missing(story, rank, first.step, first.step, text, (first.id, last.id), 0.95, brick)


def _part_of_model(story: Story, rank: int, optimizer: int) -> str:
    """Where the gradients lie that one of several optimizers leaves; nowhere in particular where it has them all."""
    own = story.names.owned_by(rank, optimizer)
    if not own or own == story.names.owned(rank):
        return ""
    return story.names.show(story.names.tensor(rank, min(own)).brick)


def _running_sum(story: Story, rank: int, contract: Contract) -> Violation | None:
    """Without a look at what was held: nobody ever clears, and the norm grows like a sum of gradients."""
    losses = [event for event in story.events("loss", rank) if "zeroed" in event.fields]
    later = [event for event in losses if event.step > losses[0].step] if losses else []
    cleared = sum(whole(event.fields.get("zeroed")) for event in later)
    if len(later) < 10 or cleared or story.events("zero_grad", rank):
        return None
    norms = story.norms(rank).finite()
    if len(norms) < 10:
        return None
    third = len(norms) // 3
    early, late = float(np.median(norms.values[:third])), float(np.median(norms.values[-third:]))
    rising = float(np.mean(np.diff(norms.values) > 0))
    if early <= 0 or late < contract.threshold("sum_growth") * early or rising < 0.6:
        return None
    text = f"no zero_grad in {wording.count(len(later), 'step')}, and the norm rose from {early:.3g} to {late:.3g}"
    evidence = (*norms.evidences((0, len(norms) - 1)), later[0].id)
    return _missing(story, rank, later[0].step, later[min(9, len(later) - 1)].step, text, evidence, 0.8)


def _missing(
    story: Story,
    rank: int,
    first: int,
    detected: int,
    text: str,
    evidence: tuple[str, ...],
    certainty: float,
    brick: str = "",
) -> Violation:
    norms = story.norms(rank).finite()
    whys = [Because("Why do old gradients count again?", _cleared_text(story, rank), "", evidence)]
    if len(norms) >= 4 and norms.values[0] > 0 and norms.values.max() >= 2 * norms.values[0]:
        peak = int(np.argmax(norms.values))
        grown = (
            f"The norm rose from {norms.values[0]:.3g} (step {int(norms.steps[0]):,}) to {norms.values[peak]:.3g} "
            f"(step {int(norms.steps[peak]):,}): each update repeats all the gradients before it."
        )
        whys.insert(0, Because("What does that do?", grown, "", norms.evidences((0, peak))))
    return Violation(
        CONTRACT, "not-cleared", Severity.ERROR, text, first, detected, brick, "optimizer", rank, evidence,
        {"question": "What do the gradients of a step hold?", "asked": "Why do the gradients go wrong?"},
        cause="missing-zero-grad", certainty=certainty, explains=_RUNAWAY, whys=tuple(whys), static=True,
        action="Call optimizer.zero_grad() once per update, before the first backward.",
        experiment="Print p.grad before backward: it should be None or zero.",
    )  # fmt: skip


def _cleared_text(story: Story, rank: int) -> str:
    seen = story.events("zero_grad", rank)
    if not seen:
        return "zero_grad was never called in this run."
    return f"zero_grad was seen (first in step {seen[0].step:,}), but not between these updates and backward passes."


# -- micro-batches thrown away


def _thrown_away(story: Story, rank: int, cycles: Sequence[Cycle], contract: Contract) -> Violation | None:
    several = [cycle for cycle in cycles if cycle.accumulates]
    bad = [cycle for cycle in several if all(_cleared_before(event) for event in cycle.losses[1:])]
    if len(bad) < contract.threshold("looks") or len(bad) < 0.8 * len(several):
        return None
    cycle = bad[0]
    lost = wording.count(cycle.size - 1, "micro-batch", "micro-batches")
    alone = _clears_alone(story, rank, bad)
    brick = "" if alone is None else str(alone.fields.get("within") or "")
    whose = f"gradients of {brick}" if brick else "gradients"
    symptom = (
        f"{whose} are cleared before each of the {cycle.size:,} backward passes of an update: "
        f"those of {lost} are thrown away"
    )
    whys = [Because("What is left of the batch?", f"1 of {cycle.size:,} micro-batches.", brick, cycle.evidence)]
    if alone is not None:
        eager = whole(alone.fields.get("optimizer"))
        told = f"Optimizer {eager} clears its gradients before each backward, and the others do not."
        whys.append(Because("Who clears them?", told, brick, (alone.id,)))
    return Violation(
        CONTRACT, "thrown-away", Severity.WARNING, symptom, cycle.step, bad[1].step, brick, "optimizer",
        cycle.losses[0].rank, cycle.evidence,
        {"question": "What do the gradients of an update hold?", "asked": "Why do updates not see all the data?"},
        cause="accumulation-discarded", certainty=0.9, explains=frozenset({"not-learning", "plateau"}), static=True,
        whys=tuple(whys),
        action="Call zero_grad() once per update, outside the loop over micro-batches.",
    )  # fmt: skip


def _clears_alone(story: Story, rank: int, cycles: Sequence[Cycle]) -> Event | None:
    """The look at the one optimizer that clears before each of the backward passes, where others do not."""
    sizes = {cycle.step: cycle.size for cycle in cycles}
    looks = [event for event in story.events("held", rank) if event.step in sizes and "cleared" in event.fields]
    eager = [event for event in looks if whole(event.fields["cleared"]) >= sizes[event.step]]
    named = {whole(event.fields.get("optimizer")) for event in eager}
    everyone = {whole(event.fields.get("optimizer")) for event in looks}
    return eager[0] if len(named) == 1 and named != everyone else None


def _cleared_before(event: Event) -> bool:
    return whole(event.fields.get("zeroed")) > 0


# -- summed, not averaged


def _not_averaged(story: Story, rank: int, cycles: Sequence[Cycle], contract: Contract) -> Violation | None:
    judged = [(cycle, share) for cycle in cycles if cycle.accumulates and (share := cycle.share) is not None]
    bad = [cycle for cycle, share in judged if abs(share - 1) < contract.threshold("share_tolerance")]
    sums = any(event.fields.get("reduction") == "sum" for cycle in bad for event in cycle.criteria)
    if len(bad) < contract.threshold("looks") or len(bad) < 0.8 * len(judged) or sums:
        return None
    if _divided_later(story, rank, bad):
        return None
    size = Counter(cycle.size for cycle in bad).most_common(1)[0][0]
    cycle = next(cycle for cycle in bad if cycle.size == size)
    value = number(cycle.losses[0].fields.get("value")) or 0.0
    symptom = f"{size:,} micro-batches are added up and not averaged: gradients are {size:,} times those of a batch"
    why = (
        f"Backward began from {value:.4g}, which is what the loss function gave, and not from a {size}th of it; "
        f"so in {len(bad):,} of {wording.count(len(judged), 'looked-at update')}."
    )
    return Violation(
        CONTRACT, "not-averaged", Severity.WARNING, symptom, cycle.step, bad[min(1, len(bad) - 1)].step, "",
        "optimizer", rank, cycle.evidence,
        {"question": "How large are the gradients of an update?", "asked": "Why are the gradients that large?"},
        cause="accumulation-not-normalised", certainty=0.9, explains=_RUNAWAY, static=True,
        whys=(Because("Are the losses divided?", why, "", cycle.evidence),),
        action=f"Divide each loss by the number of micro-batches before backward: (loss / {size}).backward().",
        experiment=f"Run with the learning rate divided by {size}: under SGD the two are the same.",
    )  # fmt: skip


def _divided_later(story: Story, rank: int, bad: Sequence[Cycle]) -> bool:
    """Whether gradients are divided between backward and update instead."""
    size = median(cycle.size for cycle in bad)
    found = story.track("applied", "coefficient", rank).finite().values
    return bool(len(found)) and abs(float(np.median(found)) * size - 1) < 0.2


def _clean(story: Story, rank: int, cycles: Sequence[Cycle], threshold: str) -> ContractResult:
    several = [cycle for cycle in cycles if cycle.accumulates]
    shares = [cycle.share * cycle.size for cycle in several if cycle.share is not None]
    if several and shares:
        observed = f"{several[0].size:,} micro-batches an update, weighted {median(shares):.3g} in all"
        return ContractResult(CONTRACT, Verdict.PASS, observed, threshold)
    if several:
        scaled = [cycle for cycle in several if _is_scaled(cycle)]
        observed = f"{several[0].size:,} micro-batches an update"
        if len(scaled) == len(several):
            return ContractResult(CONTRACT, Verdict.PASS, observed, threshold, "each loss is divided before backward")
        why = "what the loss function gave was not recorded, so the division cannot be told"
        return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, observed, threshold, why)
    held = story.events("held", rank)
    if held:
        observed = f"gradients were clear at the start of {wording.count(len(held), 'looked-at step')}"
        return ContractResult(CONTRACT, Verdict.PASS, observed, threshold, "one backward an update")
    return ContractResult(CONTRACT, Verdict.VACUOUS, "", threshold, "one backward an update: nothing accumulates")


def _is_scaled(cycle: Cycle) -> bool:
    return all(str(event.fields.get("grad_fn") or "").startswith(_SCALING) for event in cycle.losses)


RULE = Accumulation
