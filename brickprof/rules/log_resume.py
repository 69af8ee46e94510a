"""C-RESUME-001, from a log: a run that goes on from a checkpoint goes on at the loss it had.

Enters: the places where steps went back or another file went on, and the losses on both sides. Leaves: a resume after
which the loss is clearly above what it was, with the learning rate on both sides. A run that begins again at its first
step is another run, not a resume.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import curves, outcomes, wording
from brickprof.rules.log_view import View, show, view
from brickprof.rules.names import whole
from brickprof.rules.story import Story

CONTRACT = "C-RESUME-001"
_BEFORE, _AFTER = 12, 5
_SIGMAS = 6.0
_ABOVE = 0.1
_FROM_SCRATCH = 0.9
_EXPLAINS = frozenset({"spike", "diverged"})


class LoggedResume:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        resumed = [event for event in story.events("resumed", -1) if _goes_on(event)]
        if seen is None or not resumed:
            return outcomes.vacuous(contract, "no resume is seen in the log")
        if not seen.bounded_below or seen.several:
            return outcomes.unjudged(contract, "a resume, and losses whose level says nothing")
        for event in resumed:
            if (violation := _damaged(seen, event, contract)) is not None:
                return outcomes.broken(contract, [violation])
        steps = ", ".join(f"{event.step:,}" for event in resumed[:4])
        return outcomes.held(contract, f"{wording.count(len(resumed), 'resume')} (at {steps}), the loss as before")


def _goes_on(event: Event) -> bool:
    """Not a run that begins anew."""
    stopped = whole(event.fields.get("stopped_at"))
    return event.step > max(1, 0.05 * stopped)


def _damaged(seen: View, event: Event, contract: Contract) -> Violation | None:
    found = seen.finite
    before, after = found.until(event.step - 1), found.since(event.step)
    if len(before) < 4 or len(after) < 2:
        return None
    old, new = before.values[-_BEFORE:], after.values[:_AFTER]
    level, now = float(np.median(old)), float(np.median(new))
    noise = max(curves.jitter(before.values[-64:]), curves.spread(old))
    if now - level < max(_SIGMAS * noise, _ABOVE * level) or float(new.min()) < level + 2 * noise:
        return None
    start = float(np.median(before.values[:3]))
    anew = start > 1.5 * level and now > _FROM_SCRATCH * start
    back = np.flatnonzero(after.values <= level + 2 * noise)
    recovered = f"; it was back by {seen.at(int(after.steps[back[0]]))}" if len(back) else "; it has not come back"
    stopped = whole(event.fields.get("stopped_at"))
    symptom = (
        f"after the resume at {seen.at(event.step)} the loss is {show(now)}; before it was {show(level)}{recovered}"
    )
    proof = (event.id, before.evidence(len(before) - 1), after.evidence(0))
    whys = [_state(seen, event, anew, start, proof)]
    if (rate := _rates(seen, event)) is not None:
        whys.append(rate)
    return Violation(
        CONTRACT, "resume", Severity.ERROR if anew else Severity.WARNING, symptom, event.step,
        int(after.steps[min(len(after), _AFTER) - 1]), "", "step", seen.rank, proof,
        {"logged": True, "question": f"Did the run go on as it stopped (at {seen.at(stopped)})?"},
        "checkpoint-incomplete" if anew else "resume-state-lost", 0.75 if anew else 0.7, _EXPLAINS, tuple(whys), (),
        "Save and restore weights, optimizer, scheduler, scaler, random states and the position in the data together.",
        "brickprof run SCRIPT: what a resume restores is recorded (C-RESUME-001, C-GPUOPT-001).",
    )  # fmt: skip


def _state(seen: View, event: Event, anew: bool, start: float, proof: tuple[str, ...]) -> Because:
    if anew:
        text = f"The loss is where an untrained model began ({show(start)}): the weights were not restored."
    else:
        text = "The loss is far below its start: weights were restored; the optimizer's state or the data were not."
    return Because("What was lost?", text, "", proof)


def _rates(seen: View, event: Event) -> Because | None:
    rates = seen.rates.finite()
    before, after = rates.until(event.step - 1), rates.since(event.step)
    if not len(before) or not len(after):
        return None
    old, new = float(before.values[-1]), float(after.values[0])
    proof = (before.evidence(len(before) - 1), after.evidence(0))
    if old > 0 and not 1 / 1.5 <= new / old <= 1.5:
        return Because("Is the rate the one it had?", f"No: {show(old)} before, {show(new)} after.", "", proof)
    return Because("Is the rate the one it had?", f"Yes: {show(old)} before, {show(new)} after.", "", proof)


RULE = LoggedResume
