"""C-STEADYPACE-001: a step takes as long at the end of a run as it did before.

Enters: throughput, or the time of a step, as a log tells it or as the times of its lines come to. Leaves: a drop to
less than half that lasts to the end of the log (by the times of lines only worth knowing: more than steps stands in
them); a stall, which is worth knowing. Slow first steps (compilation, filling of buffers) and batches that grow are no
drop.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Violation
from brickprof.logs.reading import names
from brickprof.rules import outcomes, wording
from brickprof.rules.log_pauses import written
from brickprof.rules.log_view import View, show, view
from brickprof.rules.story import Story, Track

CONTRACT = "C-STEADYPACE-001"
_A_MINUTE = 60.0
_A_CLOCK = 8
_BETWEEN = "seconds a step, by the times of the lines"
_FINE = 10.0
"""Seconds that a clock of whole ones measures well enough."""


class LoggedPace:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        pace = _pace(seen) if seen is not None else None
        if seen is None or pace is None:
            return outcomes.unjudged(contract, "the log tells no time of a step; `brickprof run` does (probe timeline)")
        name, found, times = pace
        if len(found) < contract.threshold("points"):
            return outcomes.unjudged(contract, f"{wording.count(len(found), 'time')} of steps say too little")
        if (grown := _batches_grow(seen)) != "":
            return outcomes.unjudged(contract, f"{grown} changes, and the time of a step with it")
        if (violation := _drop(seen, name, found, times, contract)) is not None:
            return outcomes.broken(contract, [violation])
        observed = f"{name}: {show(float(np.median(found.values)))} in the middle"
        stalls = [] if name == _BETWEEN else _stalls(seen, found, times, contract)
        return ContractResult(CONTRACT, outcomes.held(contract, "").verdict, observed, violations=tuple(stalls))


def _pace(seen: View) -> tuple[str, Track, bool] | None:
    """What tells the pace: a throughput before a time; whether larger is slower."""
    for role, times in (("throughput", False), ("step_seconds", True)):
        told = {name: one.per_step().finite() for name, one in seen.measures(role).items()}
        told = {name: one.where(one.values > 0) for name, one in told.items() if not _of_an_evaluation(name)}
        told = {name: one for name, one in told.items() if not _since_the_start(one)}
        if told and max(len(one) for one in told.values()) >= 2:
            name, found = max(told.items(), key=lambda item: len(item[1]))
            return name, found, times
    return _between_lines(seen)


def _between_lines(seen: View) -> tuple[str, Track, bool] | None:
    """The time from line to line over the steps between, of a log that says when its lines were written; over so many
    lines at once that a clock of whole seconds can tell."""
    clock = written(seen)
    if clock is None:
        return None
    first = np.flatnonzero(np.diff(clock.steps, prepend=clock.steps[0] - 1))
    steps, seconds = clock.steps[first], clock.values[first]
    lasted = float(seconds[-1] - seconds[0])
    if lasted <= 0 or len(steps) < _A_CLOCK:
        return None
    stride = max(1, int(np.ceil(_FINE * len(steps) / lasted)))
    places = np.arange(0, len(steps), stride)
    if len(places) < _A_CLOCK:
        return None
    apart = np.diff(steps[places])
    took = np.diff(seconds[places]) / np.maximum(apart, 1)
    known = np.flatnonzero((took > 0) & (apart > 0))  # where steps go back, another attempt begins
    known = known[np.argsort(steps[places][1:][known], kind="stable")]
    seqs = clock.seqs[first][places][1:]
    return _BETWEEN, Track(steps[places][1:][known], took[known], seqs[known], clock.rank), True


def _since_the_start(found: Track) -> bool:
    """Whether it only ever grows: a clock, and not the time of a step."""
    return len(found) >= _A_CLOCK and bool(np.all(np.diff(found.values) > 0))


def _of_an_evaluation(name: str) -> bool:
    words = frozenset(names.words(name))
    return bool(words & {"eval", "val", "valid", "validation", "test", "data", "total", "elapsed", "runtime"})


def _batches_grow(seen: View) -> str:
    for role in ("other", "tokens"):
        for name, one in seen.measures(role).items():
            words = frozenset(names.words(name))
            if {"batch", "size"} <= words or {"seqlen"} & words or {"sequence", "length"} <= words:
                known = one.finite().values
                if len(known) and float(known.max()) > 1.2 * float(known.min()):
                    return name
    return ""


def _drop(seen: View, name: str, found: Track, times: bool, contract: Contract) -> Violation | None:
    slow = found.values if times else 1.0 / found.values
    count = max(8, int(contract.threshold("lasting") * len(slow)))
    if len(slow) < 3 * count:
        return None
    late = slow[-count:]
    before = slow[len(slow) // 20 : -count]
    usual = float(np.median(before))
    factor = float(np.median(late)) / usual
    if factor < contract.threshold("slower") or float(np.percentile(late, 20)) < 1.5 * usual:
        return None
    calm = np.flatnonzero(slow < 0.5 * (1 + factor) * usual)
    place = min(int(calm[-1]) + 1, len(slow) - count)
    symptom = (
        f"steps take {factor:.2g} times as long from {seen.at(int(found.steps[place]))} on: {name} from "
        f"{show(float(np.median(found.values[:place])))} to {show(float(np.median(found.values[-count:])))}"
    )
    severity = Severity.INFO if name == _BETWEEN else Severity.WARNING
    return Violation(
        CONTRACT, "slow-down", severity, symptom, int(found.steps[place]), int(found.steps[-count]), "", "step",
        seen.rank, found.evidences((max(place - 1, 0), place, len(found) - 1)),
        {"logged": True, "question": "Why is it slower?", "step": int(found.steps[place]), "factor": factor},
    )  # fmt: skip


def _stalls(seen: View, found: Track, times: bool, contract: Contract) -> list[Violation]:
    """One step that took a great many times as long, and a minute or more."""
    if not times:
        return []
    usual = float(np.median(found.values))
    tall = np.flatnonzero((found.values > contract.threshold("stall") * usual) & (found.values > _A_MINUTE))
    tall = tall[tall > 1]
    if not len(tall):
        return []
    place = int(tall[0])
    symptom = (
        f"{seen.at(int(found.steps[place]))} took {show(float(found.values[place]))} s where {show(usual)} s is usual"
    )
    return [Violation(
        CONTRACT, "stall", Severity.INFO, symptom, int(found.steps[place]), int(found.steps[place]), "", "step",
        seen.rank, found.evidences((place,)), {"logged": True, "question": "What took so long?"},
    )]  # fmt: skip


RULE = LoggedPace
