"""C-COSINE-001, from a log: the rate reaches its peak, and its schedule ends where the run ends.

Enters: the learning rate of a log, and how far the run was to go. Leaves: a rate that is zero in every line; one that
still rises when the run is over (schedule-never-peaks); one that has hardly fallen when a schedule that falls is over,
or that is spent long before (schedule-horizon-wrong). A log that stops in the middle of a run proves none of them: the
end is judged only where the run came to it.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import outcomes, wording
from brickprof.rules.log_learning import fall
from brickprof.rules.log_view import View, show, view
from brickprof.rules.story import Story, Track

CONTRACT = "C-COSINE-001"
_SEEN_TO_FALL, _LEARNS = 8, 0.05
_FEWEST = 10
_FOLLOW = frozenset({"plateau", "not-learning", "slow-learning"})
_FALLS = 0.9
_MONOTONE = 0.95


class LoggedSchedule:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        if seen is None or not len(seen.rates.finite()):
            return outcomes.unjudged(
                contract, "the log has no learning rate; `brickprof run` records it (probe schedules)"
            )
        rates = seen.rates.per_step().finite()
        if len(rates) < _FEWEST:
            return outcomes.unjudged(
                contract, f"{wording.count(len(rates), 'learning rate')}: too few to see a schedule"
            )
        violation = _zero(seen, rates) or _never_peaks(seen, rates, contract) or _horizon(seen, rates, contract)
        observed = f"{show(float(rates.values[0]))} at first, {show(float(rates.values.max()))} at most, " \
                   f"{show(float(rates.values[-1]))} at the end"  # fmt: skip
        if violation is not None:
            return outcomes.broken(contract, [violation], "reaches its peak, and falls to the end")
        if not seen.came_to_its_end:
            return outcomes.unjudged(contract, "whether the run came to its end, the log does not say", observed)
        return outcomes.held(contract, observed)


def _zero(seen: View, rates: Track) -> Violation | None:
    if float(np.abs(rates.values).max()) > 0.0:
        return None
    if len(seen.finite) >= _SEEN_TO_FALL and fall(seen.finite) > _LEARNS:
        return None  # something is learnt: the rate is printed in too few digits
    symptom = f"the learning rate is 0 in all {len(rates):,} lines that tell it"
    text = "An update at a rate of 0 changes nothing: the schedule multiplies by 0, or was never told of a step."
    return _violation(seen, rates, (0, len(rates) - 1), Severity.ERROR, symptom, "learning-rate-too-low", 0.9, text,
                      "Look at what the schedule returns for step 0, and whether it is stepped at all.")  # fmt: skip


def _never_peaks(seen: View, rates: Track, contract: Contract) -> Violation | None:
    """Still on the way up at the end of a run that came to its end."""
    values = rates.values
    rising = float(np.mean(np.diff(values) >= 0)) >= _MONOTONE and float(values[-1]) >= 0.999 * float(values.max())
    if not rising or float(values[-1]) < 1.2 * float(values[len(values) // 2]) or not seen.came_to_its_end:
        return None
    symptom = (
        f"the learning rate still rises when the run ends: {show(float(values[-1]))} at {seen.at(int(rates.steps[-1]))}"
    )
    text = f"It only went up, from {show(float(values[0]))} on: the warm-up is longer than the run."
    return _violation(seen, rates, (0, len(rates) - 1), Severity.WARNING, symptom, "schedule-never-peaks", 0.85, text,
                      "Make the warm-up 1 to 10 % of the steps that the run really takes.")  # fmt: skip


def _horizon(seen: View, rates: Track, contract: Contract) -> Violation | None:
    values, peak = rates.values, float(rates.values.max())
    if peak <= 0:
        return None
    top = int(np.flatnonzero(values >= 0.999 * peak)[-1])
    after = values[top:]
    if len(after) < _FEWEST // 2:
        return None
    falls = float(np.mean(np.diff(after) <= 0)) >= _MONOTONE and float(after[-1]) < 0.999 * peak
    if not falls:
        return None  # constant, cyclic, or made by hand
    spent = np.flatnonzero(after <= contract.threshold("rate_spent") * peak)
    if len(spent) and seen.total:
        at = int(rates.steps[top + int(spent[0])])
        if at < contract.threshold("spent_share") * seen.total and seen.last >= 1.5 * at:
            symptom = f"the learning rate is spent at {seen.at(at)} of {seen.total:,}, and the run goes on without one"
            text = f"From {show(peak)} it fell to {show(float(after[int(spent[0])]))}: made for a shorter run."
            return _violation(seen, rates, (top, top + int(spent[0])), Severity.WARNING, symptom,
                              "schedule-horizon-wrong", 0.85, text, _ACTION)  # fmt: skip
    if not seen.came_to_its_end or float(after[-1]) <= contract.threshold("rate_left") * peak:
        return None
    # A decay that was meant to be slight (to a tenth at the end of a longer plan, by a step) is not to be told from one
    # that was cut off, unless it bends like one: it falls faster and faster to the end.
    bends = float(after[0] - after[len(after) // 2]) < 0.8 * float(after[len(after) // 2] - after[-1])
    if float(after[-1]) > _FALLS * peak or not bends:
        return None
    symptom = (
        f"the schedule is not over when the run is: the rate is {float(after[-1]) / peak:.0%} of its peak at the end"
    )
    text = (
        f"It falls from {show(peak)} to {show(float(after[-1]))}, faster to the end: the plan was longer than the run."
    )
    places = top, len(rates) - 1
    return _violation(seen, rates, places, Severity.WARNING, symptom, "schedule-horizon-wrong", 0.7, text, _ACTION)


_ACTION = "Derive the schedule's horizon from the same numbers as the length of the run."


def _violation(
    seen: View, rates: Track, places: tuple[int, int], severity: Severity, symptom: str, cause: str, certainty: float,
    text: str, action: str,
) -> Violation:  # fmt: skip
    proof = rates.evidences(places)
    return Violation(
        CONTRACT, "schedule", severity, symptom, int(rates.steps[places[0]]), int(rates.steps[places[1]]), "",
        "optimizer", seen.rank, proof, {"logged": True, "question": "Does the rate do what it was meant to?"}, cause,
        certainty, _FOLLOW, (Because("How did it go?", text, "", proof),), (), action, static=True,
    )  # fmt: skip


RULE = LoggedSchedule
