"""C-STEADYPACE-001, from the times at which a log was written: hours in which nothing was.

Enters: the time of each line that tells it, as a column or at its beginning; evaluations, checkpoints and resumes.
Leaves: a note on pauses that are no part of the work: how long, between which steps, and whether the run was started
again there or went on as if nothing had been. An evaluation or a checkpoint takes its time, and does so again and
again: a pause counts where it is many times as long as those.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, Violation
from brickprof.rules import outcomes
from brickprof.rules.log_view import View, view
from brickprof.rules.names import whole
from brickprof.rules.story import Story, Track
from brickprof.rules.story.tracks import Floats

CONTRACT = "C-STEADYPACE-001"
_FEWEST = 8
_A_MINUTE, _AN_HOUR, _A_NIGHT = 60.0, 3600.0, 6 * 3600.0
_TIMES = 10
"""So many times as long as from one line to the next, and an hour: a pause even where lines are minutes apart."""
_BEYOND = 5
"""So many times as long as the pauses that come again and again."""
_AGAIN = 3
_WORK = 3
"""So many times as long as usual: an evaluation or a checkpoint took its time."""
_ALIKE, _REGULAR = 0.1, 2
"""So near to each other, and so many others of them: an epoch that tells nothing before its end."""
_MILLISECONDS = 1e11
_SETTLED = 2


class Pause(NamedTuple):
    place: int
    """Of the line before it, in the track of times."""
    seconds: float
    restarted: bool


class LoggedPauses:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        clock = written(seen) if seen is not None else None
        if seen is None or clock is None:
            return outcomes.unjudged(contract, "the log does not say when its lines were written")
        found = _pauses(seen, clock, contract.threshold("stall"))
        if not found:
            return outcomes.unjudged(contract, "no pause in the times of the lines; that alone decides nothing")
        note = _note(seen, clock, found)
        return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, note.symptom, "", note.symptom, (note,))


def written(seen: View) -> Track | None:
    """When things were logged, in seconds, in the order they were written: where a run was started again, its steps go
    back. None where too few lines say so."""
    told = [one.finite() for one in seen.measures("time").values()]
    best = max(told, key=len, default=None)
    if best is None or len(best) < _FEWEST or float(np.ptp(best.values)) <= 0:
        return None
    scale = 1e-3 if float(np.median(best.values)) > _MILLISECONDS else 1.0
    order = np.argsort(best.seqs, kind="stable")
    return Track(best.steps[order], best.values[order] * scale, best.seqs[order], best.rank)


def _pauses(seen: View, clock: Track, stall: float) -> list[Pause]:
    apart = np.diff(clock.values)
    usual, everywhere = _usual(apart), np.arange(len(apart))
    long = (apart > np.maximum(stall * usual, _A_MINUTE)) & (everywhere >= _SETTLED)
    long |= (apart >= _AN_HOUR) & (apart > _TIMES * usual)
    busy = _at_work(seen, clock)
    pauses = long | (busy & (apart > max(_WORK * usual, _A_MINUTE)))
    found = []
    for place in np.flatnonzero(long):
        others = apart[pauses & (everywhere != place)]
        known = len(others) >= _AGAIN or bool(len(others) and busy[place])
        least = _BEYOND * float(np.median(others)) if known else 0.0
        if busy[place]:
            least = max(least, _AN_HOUR if known else _A_NIGHT)
        alike = int((np.abs(others - apart[place]) < _ALIKE * apart[place]).sum())
        if apart[place] > least and alike < _REGULAR:
            found.append(Pause(int(place), float(apart[place]), _restarted(seen, clock, int(place))))
    return found


def _usual(apart: Floats) -> float:
    """From one line to the next; no less than the clock can show."""
    forward = apart[apart >= 0]
    if not len(forward):
        return 0.0
    shown = 1.0 if bool(np.all(forward == np.floor(forward))) else 0.0
    return max(float(np.median(forward)), shown)


def _at_work(seen: View, clock: Track) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Between which lines an evaluation was made, or a checkpoint written."""
    steps = {event.step for event in seen.story.events("evaluation", seen.rank)}
    steps |= {event.step for event in seen.said("checkpoint")}
    for name in seen.measures("quality"):
        steps |= {int(step) for step in seen.measures("quality")[name].steps}
    if len(steps) > len(np.unique(clock.steps)) // 2:  # each line tells of both: nothing to learn from that
        steps = {event.step for event in seen.said("checkpoint")}
    at = np.isin(clock.steps, np.fromiter(steps, np.int64, len(steps)))
    return at[:-1] | at[1:]


def _around(clock: Track, place: int) -> tuple[int, int]:
    """The steps before and after a pause. What a run says before its first step stands behind the last step of the one
    before it: where the next one is an earlier step, it is that one."""
    before, after = int(clock.steps[place]), int(clock.steps[place + 1])
    moved = clock.steps[place + 1 :][clock.steps[place + 1 :] != before]
    return before, int(moved[0]) if len(moved) and moved[0] < before else after


def _restarted(seen: View, clock: Track, place: int) -> bool:
    before, after = _around(clock, place)
    if after < before:
        return True
    for event in seen.story.events("resumed", -1):
        if before <= whole(event.fields.get("stopped_at")) and event.step <= after + 1 and event.step >= before:
            return True
    loads = [event for event in seen.said("checkpoint") if event.fields.get("op") == "load"]
    return any(before <= event.step <= after for event in loads)


def _note(seen: View, clock: Track, found: list[Pause]) -> Violation:
    first = max(found, key=lambda pause: pause.seconds)
    before, after = _around(clock, first.place)
    where = f"between {seen.at(before)} and {after + (seen.unit == 'row'):,}"
    if after <= before:
        where = f"in {seen.at(before)}" if after == before else f"after {seen.at(before)}"
    then = "then the run was started again" if first.restarted else "it stalled, was suspended, or waited"
    then += f", at {seen.at(after)}" if after < before else ""
    symptom = f"nothing was logged for {_long(first.seconds)} {where}: {then}"
    if len(found) > 1:
        symptom += f"; {len(found)} such pauses, {_long(sum(pause.seconds for pause in found))} in all"
    return Violation(
        CONTRACT, "stall", Severity.INFO, symptom, before, max(before, after), "", "step", seen.rank,
        clock.evidences((first.place, first.place + 1)), {"logged": True, "question": "What took so long?"},
    )  # fmt: skip


def _long(seconds: float) -> str:
    if seconds < 2 * _A_MINUTE:
        return f"{seconds:.0f} seconds"
    if seconds < 2 * _AN_HOUR:
        return f"{seconds / _A_MINUTE:.0f} minutes"
    return f"{seconds / _AN_HOUR:.1f} hours" if seconds < 48 * _AN_HOUR else f"{seconds / 86_400:.1f} days"


RULE = LoggedPauses
