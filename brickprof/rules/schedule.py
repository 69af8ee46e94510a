"""C-COSINE-001: a schedule is stepped, reaches its peak, and ends with the run.

Enters: a story. Leaves: one violation for each optimizer whose schedule does not: never stepped, stepped too often,
still warming up at the end (see ``peak``), made for a much longer or a much shorter run (see ``horizon``).

A run that was stopped from outside proves nothing about the end of a schedule. A schedule that is stepped once an epoch
is healthy, so that "never" needs a second epoch, many updates, or the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import declared, horizon, outcomes, peak, plateau_measure, warmup, wording
from brickprof.rules.schedules import Schedule, rates, schedules, second_epoch, stepped
from brickprof.rules.story import Story, Track

CONTRACT = "C-COSINE-001"
FOLLOW = frozenset({"plateau", "not-learning", "slow-learning", "small-updates", "underfitting"})


class CosineSchedule:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        rank = story.ranks[0]
        found = schedules(story, rank)
        violations = list(_first_of_each(story, rank, found, contract))
        if violations:
            return outcomes.broken(contract, violations, "stepped, peaks, ends with the run")
        by_hand = [at for at in declared.updates(story, rank) if _varies(story.rates(rank, at))]
        if not found and not by_hand:
            return outcomes.vacuous(contract, "the learning rate is constant and no schedule was built")
        updates = max(declared.updates(story, rank).values(), default=0)
        if not declared.over(story, rank) or updates < contract.threshold("fewest_updates"):
            return outcomes.unjudged(contract, "the run did not come to its end by itself, or is very short")
        return outcomes.held(contract, _observed(story, rank, found), "stepped, peaks, ends with the run")


def _first_of_each(story: Story, rank: int, found: list[Schedule], contract: Contract) -> Iterator[Violation]:
    """At most one violation for each optimizer: the gravest comes first."""
    never = _never_stepped(story, rank, found, contract)
    if never is not None:
        yield never
        return
    for at in declared.lasting(story, rank):
        own = [one for one in found if one.optimizer == at]
        for violation in (
            warmup.missing(story, rank, at),
            plateau_measure.backwards(story, rank, own),
            _too_often(story, own, contract),
            _zero(story, rank, at, own, contract),
            peak.never(story, rank, at, own, *_target(story, own), contract),
            horizon.judged(story, rank, at, own, contract),
        ):
            if violation is not None:
                yield violation
                break


def _never_stepped(story: Story, rank: int, found: list[Schedule], contract: Contract) -> Violation | None:
    driven = [one for one in found if one.cls != "ReduceLROnPlateau"]
    updates = max(declared.updates(story, rank).values(), default=0)
    if not driven or updates < contract.threshold("fewest_updates") or stepped(story, rank) != 0:
        return None
    if any(_varies(rates(story, one)) for one in driven):
        return None
    over, patience = declared.over(story, rank), int(contract.threshold("updates_without_a_step"))
    again = second_epoch(story, rank)
    batches = bool(story.events("batch", rank))
    if not over and again is None and (batches or updates < patience):
        return None
    one = driven[0]
    rate = float(rates(story, one).values[-1]) if len(rates(story, one)) else float("nan")
    base, seen = one.base, min(again if again is not None else patience, story.steps(rank) - 1)
    stuck = base is not None and rate < 0.5 * base
    evidence = (*one.evidence[:1], *declared.end(story, rank))
    built = f"{one.cls} was built in step {one.sightings[0].step:,} and stepped 0 times in {updates:,} updates"
    kept = f"the learning rate stayed {rate:.3g}" + (
        f", {rate / base:.2g} of the {base:g} it was built for" if stuck and base else ""
    )
    return Violation(
        CONTRACT, "schedule", Severity.ERROR if over or again is not None else Severity.WARNING, f"{built}: {kept}", 0,
        seen, "", "optimizer", rank, evidence,
        {"question": "Is the learning-rate schedule in force?", "asked": "What did the learning rate do?"},
        "schedule-not-stepped", 0.95, FOLLOW,
        (Because("Why did the rate not move?", f"Nothing called {one.cls}.step() after it was built.", "", evidence),),
        action="Call scheduler.step() after optimizer.step(), once an update (or once an epoch, if the schedule counts "
        "epochs).",
        static=True,
    )  # fmt: skip


def _too_often(story: Story, own: list[Schedule], contract: Contract) -> Violation | None:
    for one in own:
        last = one.sightings[-1]
        count = last.fields.get("count")
        seen = story.rates(one.rank, one.optimizer)
        made = int(np.searchsorted(seen.steps, last.step, side="right"))
        updates = [e for e in story.events("optimizer", one.rank) if e.step <= last.step]
        known = [
            c
            for e in updates
            if e.fields.get("optimizer", 0) == one.optimizer and isinstance(c := e.fields.get("count"), int)
        ]
        done = max([*known, last.step + 1, made])
        if not isinstance(count, int) or count < 8 or count - 1 <= contract.threshold("steps_per_update") * done:
            continue
        per = (count - 1) / done
        symptom = (
            f"{one.cls} was stepped {count - 1:,} times in {wording.count(done, 'update')}: {per:.3g} times an update"
        )
        return Violation(
            CONTRACT, "schedule", Severity.WARNING, symptom, 0, last.step, "", "optimizer", one.rank, one.evidence,
            {"question": "Does the schedule run with the optimizer?", "asked": "What did the learning rate do?"},
            "schedule-horizon-wrong", 0.88, FOLLOW,
            (Because("Why did the rate fall so soon?",
                     f"The schedule counts {per:.3g} steps where the optimizer makes one, so that it is over after "
                     f"{1 / per:.0%} of the run.", "", one.evidence),),
            action="Call scheduler.step() once for each optimizer.step(), not for each micro-batch.", static=True,
        )  # fmt: skip
    return None


def _updates_until(story: Story, one: Schedule, step: int) -> int:
    counts = [
        event.fields.get("count")
        for event in story.events("optimizer", one.rank)
        if event.step <= step and event.fields.get("optimizer", 0) == one.optimizer
    ]
    return max((count for count in counts if isinstance(count, int)), default=0)


def _zero(story: Story, rank: int, at: int, own: list[Schedule], contract: Contract) -> Violation | None:
    """A rate that is nothing from the first update on, where something was asked for."""
    found = story.rates(rank, at).per_step().finite()
    fewest = int(contract.threshold("fewest_updates"))
    asked = declared.settings(story)
    target, source = _target(story, own)
    meant = bool(target) or any(name in asked for name in ("warmup_steps", "warmup_ratio", "scheduler"))
    if not meant or len(found) < 4 or declared.updates(story, rank).get(at, 0) < fewest or found.values.max() > 0:
        return None
    evidence = (found.evidence(0), found.evidence(len(found) - 1), *source)
    of = f" of {target:g}" if target else ""
    return Violation(
        CONTRACT, "schedule", Severity.ERROR, f"the learning rate is 0{of} in every update", 0,
        min(fewest, int(found.steps[-1])), "", "optimizer", rank, evidence,
        {"question": "Did the learning rate reach its peak?", "asked": "How large was the learning rate?"},
        "schedule-never-peaks", 0.92, FOLLOW,
        (Because("Why does no weight move?", "The factor of the schedule is 0 in every update: its warm-up does not "
                 "rise (a whole-number division, a step that is never counted), or the run lies beyond its end.", "",
                 evidence),),
        action="Print the schedule's rate over the first and the last steps before the run.", static=True,
    )  # fmt: skip


def _target(story: Story, own: list[Schedule]) -> tuple[float | None, tuple[str, ...]]:
    """The rate that was meant: declared, or what the schedule was built on."""
    asked = declared.only(declared.settings(story), "lr")
    if asked is not None:
        return declared.amount(asked), (asked.source,)
    bases = [one.base for one in own if one.base is not None and one.cls not in ("CyclicLR", "OneCycleLR")]
    return (max(bases), own[0].evidence[:1]) if bases else (None, ())


def _varies(found: Track) -> bool:
    values = found.finite().values
    return bool(len(values) and values.max() > values.min() * (1 + 1e-6))


def _observed(story: Story, rank: int, found: list[Schedule]) -> str:
    names = ", ".join(dict.fromkeys(one.cls for one in found)) or "a rate set by hand"
    values = story.rates(rank, found[0].optimizer if found else 0).finite().values
    return f"{names}: {values.max():.3g} at most, {values[-1]:.3g} at the end" if len(values) else names


RULE = CosineSchedule
